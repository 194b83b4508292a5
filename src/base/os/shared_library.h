// Shared libraries: how their files are named, and the pages of their code in this process. Any thread may call.
#pragma once

#include <cstddef>

namespace berth::internal {

#ifdef __APPLE__
inline constexpr const char* kSharedLibrarySuffix = ".dylib";
#else
inline constexpr const char* kSharedLibrarySuffix = ".so";
#endif

// Lets the process forget the read-only pages of the shared library that `symbol` lies in. Loading a model runs much
// code once and never again; what it touched stays mapped and counts as memory of the process. A page that is used
// again comes back from the system's cache of the file. Returns the bytes of address space that were visited: 0 if the
// library is not known, if its code was changed when it was loaded, or if the system has no such call.
std::size_t forget_library_pages(const void* symbol) noexcept;

}  // namespace berth::internal
