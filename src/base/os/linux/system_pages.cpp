#include "base/os/system_pages.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace berth::internal {

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

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
  if (mprotect(address, bytes, PROT_NONE) != 0) return false;
  if (madvise(address, bytes, MADV_DONTNEED) == 0) return true;
  const int reason = errno;
  mprotect(address, bytes, PROT_READ | PROT_WRITE);  // the contents are still there, and so is their owner
  errno = reason;
  return false;
}

bool give_back_pages(void* address, std::size_t bytes) noexcept {
  return madvise(address, bytes, MADV_DONTNEED) == 0;
}

void trim_heap() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

int open_past_cache(const char* path) noexcept {
  return ::open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

int open_unnamed(const char* folder) noexcept {
  return ::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

void punch_hole(int descriptor, std::uint64_t offset, std::uint64_t bytes) noexcept {
  fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace berth::internal
