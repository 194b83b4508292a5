// Local search by ejection. It lowers the lid of a complete layout a little and takes out what then stands above it.
// Each item that is out goes back where it fits; if it fits nowhere, where it throws out what is easiest to place
// elsewhere. What is thrown out often becomes dear to throw out, so the search does not go in circles. When nothing is
// out any more, the plan is under the lid.
#pragma once

#include <cstdint>
#include <functional>

#include "planner/crew.h"
#include "planner/interrupt.h"
#include "planner/model.h"

namespace berth::planner {

struct EjectionLimits {
  std::uint64_t goal = 0;  // stop at a top at or below this
  std::uint64_t work = 0;
  std::uint64_t seed = 0;
  Interrupt interrupt;
};

struct EjectionResult {
  Layout best;  // no higher than what it started from
  std::uint64_t work = 0;
};

// Improves a complete layout of a model over a plain space. The result depends on the seed and the work limit, not on
// the size of the crew. Memory O(n) for each thread.
EjectionResult improve_by_ejection(const Model& model, Layout start, const EjectionLimits& limits, Crew& crew,
                                   const std::function<void(const EjectionResult&)>& progress);

}  // namespace berth::planner
