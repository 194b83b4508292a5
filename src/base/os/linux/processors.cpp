#include "base/os/processors.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace berth::internal {

unsigned usable_processors() noexcept {
  // With some C libraries hardware_concurrency() counts all processors that there are.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace berth::internal
