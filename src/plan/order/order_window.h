// The exact part of order_for_memory: at most 64 steps that run one after another, the best order among themselves.
#pragma once

#include <cstdint>
#include <vector>

namespace berth {

// A stretch of an order. Its steps are numbered from 0 in the order they have now. Values are those that change inside
// it: made here, or made before and read for the last time here.
struct OrderWindow {
  struct Step {
    std::uint64_t before = 0;          // steps that must come first, one bit each
    std::uint64_t bytes = 0;           // of the value it makes
    std::uint64_t scratch = 0;         // during the step alone
    std::vector<std::uint32_t> reads;  // indexes into `dying`
  };
  struct Dying {
    std::uint64_t readers = 0;  // steps of the window; after the last of them the value is gone
    std::uint64_t bytes = 0;
    bool inside = false;  // made here, so not part of `base`
  };
  std::vector<Step> steps;
  std::vector<Dying> dying;
  std::uint64_t base = 0;  // bytes alive before the first step
};

inline constexpr std::size_t kMostWindowSteps = 64;

struct WindowOrder {
  std::vector<std::uint32_t> order;  // empty: nothing better than the present order was found
  std::uint64_t peak = 0;            // of that order
  std::uint64_t lower_bound = 0;     // no order of this window has a lower peak
  std::uint64_t states = 0;          // visited
};

// Looks for an order whose peak is below `present`. Visits at most `most_states` states, then falls back to a beam of
// `beam` states a step. Requires: at most kMostWindowSteps steps.
WindowOrder improve_window(const OrderWindow& window, std::uint64_t present, std::uint64_t most_states,
                           std::size_t beam);

}  // namespace berth
