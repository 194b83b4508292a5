#include "base/os/process_barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace berth::internal {

bool prepare_process_barrier() noexcept {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void process_barrier() noexcept {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
  // The slow one needs no registration and no memory.
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0) return;
  // The other threads have relied on it already: without the barrier two of them may change one list at a time.
  std::fprintf(stderr,
               "berth: membarrier fails (%s) though this process was registered for it. A sandbox that forbids it must "
               "begin before the process does.\n",
               std::strerror(errno));
  std::abort();
}

}  // namespace berth::internal
