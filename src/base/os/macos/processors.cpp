#include "base/os/processors.h"

#include <algorithm>
#include <thread>

namespace berth::internal {

// A process cannot be bound to some of the processors.
unsigned usable_processors() noexcept {
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace berth::internal
