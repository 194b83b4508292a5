// Planning again when little has changed. An engine that serves requests of many shapes sees the same events with other
// sizes: the plan of one shape tells where the nodes of the next belong. A Replanner keeps what does not change and
// places new sizes in microseconds, without allocating; replan() takes any changed problem. Neither searches: what they
// return is valid and usually near the best, and the lower bound shows how near. A Replanner is used by one thread at a
// time; replan() by any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

namespace internal::planner {
class KnownOrder;
}

class Replanner {
 public:
  // Where new sizes went.
  struct Placement {
    std::uint64_t size = 0;         // the end of the last slot
    std::uint64_t lower_bound = 0;  // no plan for these sizes is smaller
  };

  // Prepares for problems that differ from `problem` in the nodes' bytes alone. `known` is a plan of it; only the order
  // of its offsets counts. O(n log n) time, O(n) memory. Fails with
  //   kInvalidArgument  the problem is invalid, or `known` has not one slot for each of its lifetimes
  //   kUnsupported      the problem has aliases, in-place nodes, gaps, fixed offsets, several lanes, banks, a block
  //   limit,
  //                     or alignments that sum to more than 2^60: use replan()
  static Result<Replanner> make(const PlanProblem& problem, const MemoryPlan& known);

  Replanner(Replanner&&) noexcept;
  Replanner& operator=(Replanner&&) noexcept;
  ~Replanner();

  // Writes an offset for each node into `offsets`; that of a node of zero bytes is 0 and means nothing. Every slot goes
  // down as far as those below it in the known plan let it. If the result is more than half a percent above the live
  // load, it tries first fit in a few orders, then throws nodes out from above a lid and finds them other places, until
  // it is as near as that or has done its share of work; it keeps the smallest. The capacity of the problem does not
  // count. The same sizes always give the same offsets. O(n) in practice for the first attempt, and a bounded number of
  // nodes looked at for each node in all others together. Allocates nothing. Fails with
  //   kInvalidArgument  `bytes` or `offsets` has not one entry for each node, or the bytes sum to more than 2^50;
  //                     nothing is written
  Result<Placement> place(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets);

  // Adds what another plan of the same events knows, such as that of another shape: place() tries the order of each
  // plan. Up to 32 are kept. The nearer the sizes of one of them are to those that are asked for, the better; but even
  // plans of other sizes help. O(n log n). Fails with
  //   kInvalidArgument  `known` has not one slot for each node
  Result<void> learn(const MemoryPlan& known);

  // Plans `problem` that many times with sizes drawn anew, and learns these plans. In every other one each size grows
  // or shrinks by itself, in the others equal sizes do so together. Takes as long as that many plans. Fails like
  // plan(), and with
  //   kInvalidArgument  `problem` has not one lifetime for each node
  Result<void> rehearse(PlanProblem problem, std::size_t times, const PlanOptions& options);

  std::size_t nodes() const noexcept;

 private:
  explicit Replanner(std::unique_ptr<internal::planner::KnownOrder> order) noexcept;
  std::unique_ptr<internal::planner::KnownOrder> order_;
};

// Plans `problem`, starting from a plan of a similar one. Node i of the problem is node i of `known`, if that has it; a
// node without a slot there is new, and one of zero bytes is gone. Nodes whose bytes did not change stay where they are
// if the plan is then within 0.25 % of the bound; where that takes only few moves, those are made; otherwise every node
// goes down as far as it can, in the order of the known offsets. All rules of plan.h hold; the plan passes validate()
// for `problem`. O(n k) time if at most k nodes are live at the same time, without a search. Fails like plan().
Result<MemoryPlan> replan(const PlanProblem& problem, const MemoryPlan& known);

}  // namespace berth
