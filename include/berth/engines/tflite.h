// Plans the tensors of a TensorFlow Lite model ahead of time, for TensorFlow Lite Micro. That runtime places tensors
// with a greedy rule when it starts, unless the model carries offsets in a metadata entry, "OfflineMemoryAllocation".
// plan_tflite() computes the offsets with the planner and adds that entry. Any thread may call it; the result does not
// refer to its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth::engines {

struct TfliteOptions {
  // Also choose the order of the operators, which the file fixes. Operators with state (variables, resources, custom
  // operators, control flow) keep their order among themselves.
  bool reorder = false;
  PlanOptions plan = {};
};

struct TflitePlan {
  // The model with its plan. Every other byte of the model is unchanged; with `reorder`, except the list of operators.
  std::vector<std::byte> file = {};

  // The tensors in the arena, in the order of execution that `file` has: level 0 is before the first operator, and each
  // operator that runs is one level, or more if it runs subgraphs. Tensors with the same index in several subgraphs
  // share a lifetime. Labels are the tensors' names.
  PlanProblem problem = {};
  MemoryPlan plan = {};

  std::uint64_t stock_bytes = 0;  // what the runtime's own rule needs for these tensors, in the order of the input
  std::uint64_t given_bytes = 0;  // what a plan needs in the order of the input
  std::uint64_t order_bound = 0;  // no plan in any order needs less; 0 without `reorder`
  std::size_t operators = 0;
  std::size_t left_to_runtime =
      0;                   // tensors whose size the file does not tell; the runtime places them around the plan
  bool reordered = false;  // the order of `file` is not that of the input
  bool had_plan = false;   // the input carried a plan, which was replaced
};

// The arena of the runtime holds these tensors, what kernels request as scratch, and a part that is the same for every
// plan. Scratch is not in the file, so it is not in these figures either: the runtime places it around the plan.
// O(n log n) for n tensors, the time of planning, and the quadratic time of the runtime's own rule.
// kInvalidData: not a TensorFlow Lite model, or one that refers outside itself. kUnsupported: tensors stored behind the
// FlatBuffer, a tensor that is written twice, a subgraph that runs itself, or subgraphs for which no plan is as small
// as the runtime's own; the message says which. kInfeasible: the plan is larger than 2 GiB.
Result<TflitePlan> plan_tflite(std::span<const std::byte> file, const TfliteOptions& options = {});

}  // namespace berth::engines
