#include "base/os/shared_file.h"

#include <fcntl.h>

#include <cerrno>

namespace berth::internal {

// The system has no files whose size is sealed.
int make_shared_file(std::size_t) noexcept {
  errno = ENOTSUP;
  return -1;
}

int reopen_for_reading(int) noexcept {
  errno = ENOTSUP;
  return -1;
}

bool cannot_shrink(int descriptor) noexcept {
  if (fcntl(descriptor, F_GETFD) >= 0) errno = EINVAL;
  return false;
}

}  // namespace berth::internal
