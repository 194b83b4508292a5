// The exact part of order_for_memory: the best order of at most 64 consecutive steps. Pure functions; any thread may
// call.
#pragma once

#include <cstdint>
#include <vector>

namespace berth::internal {

// Consecutive steps of an order, numbered from 0 in their present order. Only values that change inside the window are
// listed: those written here, and those written before and read for the last time here.
struct OrderWindow {
  struct Step {
    std::uint64_t before = 0;          // steps that must come first, one bit each
    std::uint64_t bytes = 0;           // of the value it writes
    std::uint64_t scratch = 0;         // only during the step
    std::vector<std::uint32_t> reads;  // indexes into `dying`
  };
  struct Dying {
    std::uint64_t readers = 0;  // steps of the window; the value dies after the last of them
    std::uint64_t bytes = 0;
    bool inside = false;  // written here, so not part of `base`
  };
  std::vector<Step> steps;
  std::vector<Dying> dying;
  std::uint64_t base = 0;  // bytes live before the first step
};

inline constexpr std::size_t kMostWindowSteps = 64;

struct WindowOrder {
  std::vector<std::uint32_t> order;  // empty: nothing better than the present order was found
  std::uint64_t peak = 0;            // of that order
  std::uint64_t lower_bound = 0;     // no order of this window has a lower peak
  std::uint64_t states = 0;          // visited
};

// Searches an order whose peak is below `present`. Visits at most `most_states` states, then continues with a beam of
// `beam` states per step. Requires: at most kMostWindowSteps steps.
WindowOrder improve_window(const OrderWindow& window, std::uint64_t present, std::uint64_t most_states,
                           std::size_t beam);

}  // namespace berth::internal
