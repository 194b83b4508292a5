#include "plan/plain.h"

#include <algorithm>

#include "base/try.h"

namespace berth::internal::planner {

Result<void> check_plain(const Lifetime& lifetime, std::size_t index, std::uint32_t lane) {
  const Lifetime& it = lifetime;
  if (!it.alias && !it.reuse_in_place && it.gaps.empty() && !it.offset && it.lane == lane) return {};
  return Error(Code::kUnsupported, Layer::kPlan,
               "node {} is an alias or in place of another, has gaps or a fixed offset, or is in another lane than "
               "node 0; plain lifetimes are needed here: use replan()",
               index);
}

Result<void> check_plain(const PlanProblem& problem) {
  if (!problem.banks.empty() || problem.max_block_bytes != 0) {
    return Error(Code::kUnsupported, Layer::kPlan,
                 "the problem has {} banks and a block limit of {}; one block without a limit is needed here: use "
                 "replan()",
                 problem.banks.size(), problem.max_block_bytes);
  }
  std::uint64_t largest = problem.alignment;
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    BERTH_TRY(check_plain(problem.lifetimes[i], i, problem.lifetimes.front().lane));
    largest = std::max(largest, problem.lifetimes[i].alignment);
  }
  if (largest > kMostPadding / (problem.lifetimes.size() + 1)) {
    return Error(Code::kUnsupported, Layer::kPlan,
                 "{} nodes with an alignment of up to {b} are more than can be placed again; use replan()",
                 problem.lifetimes.size(), largest);
  }
  return {};
}

}  // namespace berth::internal::planner
