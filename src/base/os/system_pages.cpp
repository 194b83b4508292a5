#include "base/os/system_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace berth {

#ifdef __APPLE__

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

#else

void want_huge_pages(void* address, std::size_t bytes) noexcept {
  madvise(address, bytes, MADV_HUGEPAGE);
}

bool populate_pages(void* address, std::size_t bytes, bool for_writing) noexcept {
#ifdef MADV_POPULATE_WRITE
  constexpr int kPopulateRead = MADV_POPULATE_READ, kPopulateWrite = MADV_POPULATE_WRITE;
#else
  constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // kernels before 5.14 refuse them
#endif
  return madvise(address, bytes, for_writing ? kPopulateWrite : kPopulateRead) == 0;
}

bool lock_pages(void* address, std::size_t bytes) noexcept {
  // The pages are in place already, so they need not be walked once more.
  return mlock2(address, bytes, MLOCK_ONFAULT) == 0 || (errno == ENOSYS && mlock(address, bytes) == 0);
}

bool discard_pages(void* address, std::size_t bytes) noexcept {
  // Without access first, so that a stray use faults instead of finding zeroes.
  return mprotect(address, bytes, PROT_NONE) == 0 && madvise(address, bytes, MADV_DONTNEED) == 0;
}

int open_past_cache(const char* path) noexcept {
  return ::open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

int open_unnamed(const char* folder) noexcept {
  return ::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

#endif

}  // namespace berth
