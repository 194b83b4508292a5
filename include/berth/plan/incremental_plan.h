// A plan that follows its problem. Nodes come, go and change a few at a time; each change costs time in proportion to
// what lives together with the changed nodes, not to the problem, and everything else stays where it is unless it is in
// the way. For all sizes at once there is a Replanner (replan.h). Used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

class IncrementalPlan {
 public:
  // Node `node` is now `lifetime`. A lifetime of zero bytes takes the node away; its number stays. The next number,
  // nodes(), adds a node.
  struct Change {
    std::uint32_t node = 0;
    Lifetime lifetime = {};
  };
  struct Outcome {
    std::uint64_t size = 0;                  // the end of the last slot
    std::uint64_t lower_bound = 0;           // no plan is smaller
    std::span<const std::uint32_t> moved{};  // whose offsets are other than before, and the new nodes, ascending; valid
                                             // until the next change
    bool planned_again = false;              // the whole problem was, because local moves did not get near the bound
  };

  // Sets out from a plan of `problem`. O(n log n) time, O(n) memory. Fails with
  //   kInvalidArgument  validate() does not accept `known` for `problem`, or the bytes sum to more than 2^50
  //   kUnsupported      the problem is not plain: see Replanner::make
  static Result<IncrementalPlan> make(PlanProblem problem, const MemoryPlan& known);

  IncrementalPlan(IncrementalPlan&&) noexcept;
  IncrementalPlan& operator=(IncrementalPlan&&) noexcept;
  ~IncrementalPlan();

  // Changes the problem and the plan. Unchanged nodes keep their offsets if the plan is then near its bound: no farther
  // above than the plan it set out from, or 0.25 %. Else what stands too high is put elsewhere, and throws out what is
  // in its way, for a bounded number of moves for each changed node. If that leaves the plan 1 % higher than it should
  // be, the problem is planned again with a small work limit. The capacity of the problem does not count. The same
  // changes always give the same plan. O(k log n) time if the changed nodes, and those that move, live together with k
  // nodes in all. Fails with
  //   kInvalidArgument  a lifetime is invalid, a node is beyond the next number, or the bytes sum to more than 2^50
  //   kUnsupported      a lifetime is not plain
  // and then changes nothing.
  Result<Outcome> change(std::span<const Change> changes);

  std::size_t nodes() const noexcept;
  // Where a node that has bytes is.
  std::uint64_t offset(std::uint32_t node) const noexcept;
  std::uint64_t size() const noexcept;
  std::uint64_t lower_bound() const noexcept;

  // The problem as it is now, and a plan of it that validate() accepts unless the problem has a capacity and it does
  // not fit. O(n) time for the plan.
  const PlanProblem& problem() const noexcept;
  MemoryPlan memory_plan() const;

 private:
  struct State;
  explicit IncrementalPlan(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace berth
