// A plan together with the problem it is for, as Python sees it.
#pragma once

#include "berth/plan/plan.h"

namespace berth::python {

struct PlannedProblem {
  PlanProblem problem;
  MemoryPlan plan;
};

}  // namespace berth::python
