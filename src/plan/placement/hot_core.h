// Large problems by their hot core. What is alive when the load is near its peak, tiny items aside, decides the size:
// it is packed first, by the searches, as if there were nothing else. Everything else goes around it greedily, where
// there is more room.
#pragma once

#include <cstdint>

#include "plan/placement/crew.h"
#include "plan/placement/improvement.h"
#include "plan/placement/model.h"

namespace berth::internal::planner {

// Which items are the core: those alive while the load is at least (1 - depth) of its peak whose size is at least
// `least` of it.
struct CoreShape {
  double depth = 0.2;
  double least = 1e-5;
};

// How the core is packed: by many short restarts of the exact search, or, where it has thousands of items, by single
// descents of it (descents.h).
enum class CoreSearch : std::uint8_t { kRestarts, kDescents };

// A layout around the core of this shape; a top of kNowhere if that has fewer items than `fewest`, none, or too
// many to search, or if descents
// did not get the core below `known`, a layout of the whole. `limits.work` is for the search of the core. For a plain
// space without fixed items.
Improvement place_around_core(const Model& model, const CoreShape& shape, CoreSearch search, std::size_t fewest,
                              const Layout& known, const ImprovementLimits& limits, Crew& crew);

}  // namespace berth::internal::planner
