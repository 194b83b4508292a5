// Lowering the peaks of a layout of very many items. What decides the top of such a layout is a few short stretches of
// time; everywhere else there is room. So only the items that live within such a stretch are taken out and placed anew,
// largest first, around those that reach beyond it, again and again with other rules where the top is highest.
#pragma once

#include "plan/placement/crew.h"
#include "plan/placement/improvement.h"

namespace berth::internal::planner {

// Ends at the goal, at a limit, or when many rules in turn lowered nothing. The layout does not depend on the size of
// the crew. One round is O(n) to find the stretches, and for each item in them what Placer::find takes; memory is O(n).
// Requires: a plain space without fixed items, and a complete layout to start from.
Improvement lower_peaks(const Model& model, Layout start, const ImprovementLimits& limits, Crew& crew,
                        const ImprovementProgress& progress = {});

}  // namespace berth::internal::planner
