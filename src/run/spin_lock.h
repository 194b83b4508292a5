// A lock that is held for a few nanoseconds and never across a blocking call, so waiting for it is spinning. A waiter
// yields if the holder seems to have lost its core. Any thread may call.
#pragma once

#include <atomic>
#include <thread>

#include "berth/base/mutex.h"

namespace berth::internal {

class BERTH_THREAD_ATTRIBUTE(capability("spin lock")) SpinLock {
 public:
  void lock() noexcept BERTH_ACQUIRE() {
    for (unsigned spins = 0; held_.exchange(true, std::memory_order_acquire); ++spins) {
      while (held_.load(std::memory_order_relaxed))
        if (++spins > 64) std::this_thread::yield();
    }
  }
  void unlock() noexcept BERTH_RELEASE() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace berth::internal
