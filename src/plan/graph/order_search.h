// The search for an order below a limit. Pure functions; one thread each.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/graph/step_graph.h"

namespace berth::internal::graphs {

// How much a search may do.
struct SearchBudget {
  std::uint64_t work = 0;           // steps it may still try; taken off as it goes on
  std::function<bool()> stop = {};  // asked now and then; true ends the search
};

enum class SearchEnd : std::uint8_t { kFound, kImpossible, kStopped };

struct SearchResult {
  SearchEnd end = SearchEnd::kStopped;
  std::vector<std::uint32_t> order = {};  // kFound: no step needs more than the limit
  std::uint64_t next = 0;                 // kImpossible: the lowest peak that an order can have; above the limit
};

// Looks for an order in which no step needs more than `limit`. A search that ends with kImpossible has proven that
// there is none. It tries at most `most` steps, and takes them off the budget.
SearchResult find_order(const StepGraph& graph, std::uint64_t limit, std::uint64_t most, SearchBudget& budget);

}  // namespace berth::internal::graphs
