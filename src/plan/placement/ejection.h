// Local search by ejection. It lowers the lid of a complete layout a little and takes out what then stands above it.
// Each item that is out goes back where it fits; if it fits nowhere, where it throws out what is easiest to place
// elsewhere. What is thrown out often becomes dear to throw out, so the search does not go in circles. When nothing is
// out any more, the plan is under the lid.
#pragma once

#include "plan/placement/crew.h"
#include "plan/placement/improvement.h"

namespace berth::internal::planner {

// Improves a complete layout of a model over a plain space. The result depends on the seed and the work limit, not on
// the size of the crew. Memory O(n) for each thread.
Improvement improve_by_ejection(const Model& model, Layout start, const ImprovementLimits& limits, Crew& crew,
                                const ImprovementProgress& progress);

}  // namespace berth::internal::planner
