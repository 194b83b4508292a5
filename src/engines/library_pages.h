// The pages of a shared library's code in this process. Loading a model runs much code once and never again; what it
// touched stays mapped and counts as the process's memory. Any thread may call.
#pragma once

#include <cstddef>

namespace berth::ort {

// Lets the process forget the read-only pages of the shared library that `symbol` lies in; a page that is used again
// comes back from the system's cache of the file. Gives the bytes of address space it looked at: 0 where the library
// is not known, has code that was changed when it was loaded, or the system does not have this.
std::size_t forget_library_pages(const void* symbol) noexcept;

}  // namespace berth::ort
