// Lowering the peaks of a layout of very many items. What decides the top of such a layout is a few short stretches of
// time; everywhere else there is room. So only the items that live within such a stretch are taken out and placed anew,
// largest first, around those that reach beyond it, again and again with other rules where the top is highest.
#pragma once

#include <cstdint>
#include <functional>

#include "planner/crew.h"
#include "planner/interrupt.h"
#include "planner/model.h"

namespace berth::planner {

struct PeakLimits {
  std::uint64_t goal = 0;   // stop at a top at or below this
  std::uint64_t work = 0;   // stop when this much is done
  std::uint64_t round = 1;  // the work of placing all items once
  std::uint64_t seed = 0;
  Interrupt interrupt;
};

struct PeakResult {
  Layout best;  // no higher than what it started from
  std::uint64_t work = 0;
};

// Ends at the goal, at a limit, or when many rules in turn lowered nothing. `progress` is called on the calling thread
// when the top falls. The layout does not depend on the size of the crew. One round is O(n) to find the stretches, and
// for each item in them what Placer::find takes; memory is O(n).
// Requires: a plain space without fixed items, and a complete layout to start from.
PeakResult lower_peaks(const Model& model, Layout start, const PeakLimits& limits, Crew& crew,
                       const std::function<void(const PeakResult&)>& progress = {});

}  // namespace berth::planner
