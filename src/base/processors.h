// How many processors this process may use.
#pragma once

#include <algorithm>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace berth::internal {

// At least 1. A process that is bound to some processors may use those; hardware_concurrency() counts all that there
// are with some C libraries.
inline unsigned usable_processors() noexcept {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace berth::internal
