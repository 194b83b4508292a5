// The planning problem of a graph in one order. Pure functions; any thread may call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "berth/plan/plan_graph.h"
#include "plan/graph/step_graph.h"

namespace berth::internal::graphs {

struct OrderedProblem {
  PlanProblem problem;
  std::vector<GraphNode> nodes;  // of each lifetime
};

// Requires: `checked` is of `graph`, and `order` is one of its orders.
OrderedProblem problem_of(const MemoryGraph& graph, const CheckedGraph& checked, std::span<const std::uint32_t> order);

}  // namespace berth::internal::graphs
