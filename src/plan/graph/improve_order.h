// From orders that are known to one that needs less, with a bound. Pure functions; one thread each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/graph/order_search.h"
#include "plan/graph/step_graph.h"

namespace berth::internal::graphs {

struct ImprovedOrder {
  std::vector<std::uint32_t> order;
  std::uint64_t peak = 0;
  std::uint64_t bound = 0;  // no order has a lower peak
};

// The best order that was found, starting with the given ones. Between cuts, which all orders pass, each part is taken
// from the best of them, and then searched: exactly, from below and from above, and in windows around its peak.
// Requires: at least one order; all are valid.
ImprovedOrder improve_order(const StepGraph& graph, std::span<const std::vector<std::uint32_t>> known,
                            SearchBudget& budget);

}  // namespace berth::internal::graphs
