// A point in time that a caller's duration leads to, whatever its size.
#pragma once

#include <algorithm>
#include <chrono>

namespace berth::internal::replay {

// `time` and `wait` later; the last point in time there is if that is beyond it. A negative `wait` is none. Requires:
// `time` is not before the epoch of the clock.
inline std::chrono::steady_clock::time_point time_after(std::chrono::steady_clock::time_point time,
                                                        std::chrono::milliseconds wait) noexcept {
  using Time = std::chrono::steady_clock::time_point;
  wait = std::max(wait, std::chrono::milliseconds(0));
  return wait < std::chrono::duration_cast<std::chrono::milliseconds>(Time::max() - time) ? time + wait : Time::max();
}

}  // namespace berth::internal::replay
