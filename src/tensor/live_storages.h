// The list of live storages for the leak report at exit. Maintained in debug builds only; in release builds the calls
// are empty.
#pragma once

#include <string>

namespace berth::internal {

class Storage;

#ifdef NDEBUG
inline void note_live(Storage&) noexcept {}
inline void note_gone(Storage&) noexcept {}
#else
void note_live(Storage& storage) noexcept;
void note_gone(Storage& storage) noexcept;
// One line per live storage: label, size, and where it was created. Empty if there is none.
std::string live_report();
#endif

}  // namespace berth::internal
