// Packing thousands of items by single descents of the exact search. Where there are so many, one descent takes as long
// as hundreds of restarts of a small problem, and coming back from a dead end near the top is hopeless, because what
// was wrong lies far below. So the descents must be good rather than many: the lowest point or the one with least slack
// is filled first, the longest-lived items come first, and of several that could stand there that one is chosen which
// wastes least.
#pragma once

#include "plan/placement/crew.h"
#include "plan/placement/improvement.h"

namespace berth::internal::planner {

// Ends at the goal, at a limit, or when many descents in turn lowered nothing. The layout does not depend on the size
// of the crew. Requires: a plain space, and a complete layout to start from.
Improvement improve_by_descents(const Model& model, Layout start, const ImprovementLimits& limits, Crew& crew);

}  // namespace berth::internal::planner
