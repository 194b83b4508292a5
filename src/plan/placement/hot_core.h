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

// A layout around the core of this shape; a top of kNowhere if that has no items or too many to search. `limits.work`
// is for the search of the core. For a plain space without fixed items.
Improvement place_around_core(const Model& model, const CoreShape& shape, const ImprovementLimits& limits, Crew& crew);

}  // namespace berth::internal::planner
