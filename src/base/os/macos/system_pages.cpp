#include "base/os/system_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace berth::internal {

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void want_huge_pages(void*, std::size_t) noexcept {}

bool populate_pages(void*, std::size_t, bool) noexcept {
  return false;
}

bool lock_pages(void* address, std::size_t bytes) noexcept {
  return mlock(address, bytes) == 0;
}

bool discard_pages(void* address, std::size_t bytes) noexcept {
  // Advice alone need not clear pages here, and a fresh mapping does.
  return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool give_back_pages(void* address, std::size_t bytes) noexcept {
  return madvise(address, bytes, MADV_FREE_REUSABLE) == 0;
}

void trim_heap() noexcept {}

int open_past_cache(const char* path) noexcept {
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0 && fcntl(descriptor, F_NOCACHE, 1) == -1) {
    ::close(descriptor);
    return -1;
  }
  return descriptor;
}

int open_unnamed(const char*) noexcept {
  return -1;
}

void punch_hole(int, std::uint64_t, std::uint64_t) noexcept {}

}  // namespace berth::internal
