#include "base/os/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace berth::internal {

int make_shared_file(std::size_t bytes) noexcept {
  const int descriptor = memfd_create("berth", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return -1;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 &&
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    return descriptor;
  const int reason = errno;
  close(descriptor);
  errno = reason;
  return -1;
}

int reopen_for_reading(int descriptor) noexcept {
  // A duplicate would have the access of the first descriptor; only a second open can have less.
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  return ::open(path, O_RDONLY | O_CLOEXEC);
}

bool cannot_shrink(int descriptor) noexcept {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace berth::internal
