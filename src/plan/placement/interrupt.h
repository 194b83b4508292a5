// When to stop: the caller's wish, the clock, or a sibling whose result makes this one's pointless. Cheap enough to ask
// every few dozen search nodes. Any thread may ask.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>

namespace berth::internal::planner {

using Clock = std::chrono::steady_clock;

struct Interrupt {
  std::stop_token cancel;
  std::optional<Clock::time_point> deadline;
  // Work item `index` is pointless once one with a lower index is decisive.
  const std::atomic<std::uint64_t>* decisive = nullptr;
  std::uint64_t index = 0;

  bool out_of_time() const noexcept { return cancel.stop_requested() || (deadline && Clock::now() >= *deadline); }
  bool requested() const noexcept {
    return (decisive && decisive->load(std::memory_order_relaxed) < index) || out_of_time();
  }
};

}  // namespace berth::internal::planner
