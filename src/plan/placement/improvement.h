// What the searches that start from a complete layout are told, and what they give back.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/placement/interrupt.h"
#include "plan/placement/model.h"

namespace berth::internal::planner {

struct ImprovementLimits {
  std::uint64_t goal = 0;   // stop at a top at or below this
  std::uint64_t work = 0;   // stop when this much is done
  std::uint64_t round = 1;  // the work of placing all items once
  std::uint64_t seed = 0;
  Interrupt interrupt;
};

struct Improvement {
  Layout best;  // no higher than what it started from
  std::uint64_t work = 0;
};

// Called on the calling thread when the top falls.
using ImprovementProgress = std::function<void(const Improvement&)>;

}  // namespace berth::internal::planner
