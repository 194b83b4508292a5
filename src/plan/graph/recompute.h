// Running steps again instead of keeping what they wrote. Pure functions; one thread each.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/graph/order_search.h"
#include "plan/graph/step_graph.h"

namespace berth::internal::graphs {

// A graph in which a step that runs again is a step of its own, which writes a value of its own.
struct Expanded {
  MemoryGraph graph;
  std::vector<std::uint32_t> order;     // of its steps
  std::vector<std::uint32_t> step_of;   // of each step: the original
  std::vector<std::uint32_t> value_of;  // of each value: the original
  double seconds = 0;                   // of the steps that run again
};

// Lowers the peak of an order by running steps again, for at most `seconds` in sum. Takes away from the peak what is
// live there without being used, by bytes saved for the time it takes.
Expanded recompute(const MemoryGraph& graph, const std::vector<std::uint32_t>& order, double seconds,
                   SearchBudget& budget);

}  // namespace berth::internal::graphs
