#include "berth/plan/incremental_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "base/try.h"
#include "plan/placement/arrangement.h"
#include "plan/plain.h"

namespace berth {

using namespace internal;

namespace {

constexpr double kNear = 1.0025;              // times the bound is near enough
constexpr double kTooHigh = 1.005;            // times the goal: what stands above it moves
constexpr std::int64_t kWork = 5000;          // nodes looked at for each changed one
constexpr std::int64_t kMostWork = 200;       // for each node
constexpr std::uint64_t kAgainWork = 50'000;  // of planning again, and for each node
constexpr std::uint64_t kAgainNodeWork = 200;

using Node = planner::Arrangement::Node;

Node node_of(const PlanProblem& problem, const Lifetime& it, std::uint64_t offset) {
  const LevelRange always{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  return {it.pinned ? always : LevelRange{it.first, it.last}, it.bytes, std::max(it.alignment, problem.alignment),
          offset};
}

Error too_much() {
  return Error(Code::kInvalidArgument, Layer::kPlan,
               "the nodes' bytes sum to more than the {b} that a plan can hold; check the sizes", planner::kMostBytes);
}

planner::Arrangement arrange(const PlanProblem& problem, const MemoryPlan& plan) {
  std::vector<Node> nodes;
  nodes.reserve(problem.lifetimes.size());
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    nodes.push_back(node_of(problem, problem.lifetimes[i], plan.has(i) ? plan.slots[i].offset : planner::kNowhere));
  }
  return planner::Arrangement(std::move(nodes), problem.alignment);
}

}  // namespace

struct IncrementalPlan::State {
  State(PlanProblem of, const MemoryPlan& known) : problem(std::move(of)), arrangement(arrange(problem, known)) {
    for (const Lifetime& it : problem.lifetimes) total += it.bytes;
    size = arrangement.top();
    know_ratio();
  }

  void know_ratio() {
    const auto bound = static_cast<double>(std::max<std::uint64_t>(1, arrangement.load()));
    ratio = std::max(kNear, static_cast<double>(size) / bound);
  }

  std::uint64_t bound_times(double factor) const {
    return static_cast<std::uint64_t>(static_cast<double>(arrangement.load()) * factor);
  }

  // Of all nodes; the first decides.
  std::uint32_t lane_after(std::span<const Change> changes) const {
    if (!problem.lifetimes.empty()) return problem.lifetimes.front().lane;
    const auto first =
        std::find_if(changes.begin(), changes.end(), [](const Change& c) { return c.lifetime.bytes > 0; });
    return first == changes.end() ? 0 : first->lifetime.lane;
  }

  Result<void> check(std::span<const Change> changes) const {
    std::size_t next = problem.lifetimes.size();
    std::uint64_t added = 0;
    const std::uint32_t next_lane = lane_after(changes);
    for (const Change& change : changes) {
      const Lifetime& it = change.lifetime;
      if (change.node > next) {
        return Error(Code::kInvalidArgument, Layer::kPlan, "there is no node {}; the next new one is {}", change.node,
                     next);
      }
      if (change.node == next) ++next;
      if (it.bytes == 0) continue;
      BERTH_TRY(planner::check_plain(it, change.node, next_lane));
      if (!std::has_single_bit(it.alignment) || it.bank.value_or(0) != 0 ||
          it.alignment > planner::kMostPadding / (next + 1)) {
        return Error(
            Code::kInvalidArgument, Layer::kPlan,
            "node {} has alignment {} and bank {}; the alignment must be a power of two, and there is one bank",
            change.node, it.alignment, it.bank.value_or(0));
      }
      if (!it.pinned && it.first >= it.last) {
        return Error(Code::kInvalidArgument, Layer::kPlan,
                     "node {} lives [{}, {}), which is no level; last must be "
                     "greater than first",
                     change.node, it.first, it.last);
      }
      if (it.bytes > planner::kMostBytes - total - added) {
        return too_much();
      }
      added += it.bytes;
    }
    return {};
  }

  void apply(std::span<const Change> changes) {
    const std::uint32_t lane = lane_after(changes);
    for (const Change& change : changes) {
      if (change.node == problem.lifetimes.size()) problem.lifetimes.emplace_back();
      Lifetime& it = problem.lifetimes[change.node];
      const std::uint64_t wish = it.bytes == 0 ? planner::kNowhere : arrangement.node(change.node).offset;
      total = total - it.bytes + change.lifetime.bytes;
      it = change.lifetime.bytes > 0 ? change.lifetime : Lifetime{.lane = lane};
      arrangement.set(change.node, node_of(problem, it, wish));
    }
  }

  // True if all of it was planned again.
  bool settle(std::size_t changed) {
    const std::uint64_t goal = bound_times(ratio), limit = bound_times(ratio * kTooHigh);
    arrangement.settle(goal, limit,
                       std::min(kWork * static_cast<std::int64_t>(changed),
                                kMostWork * static_cast<std::int64_t>(arrangement.size())));
    size = arrangement.top();
    const bool high = size > limit;
    if (high) plan_again();
    if (high || size < goal) know_ratio();
    moved = arrangement.take_moved();
    if (arrangement.changes() > arrangement.size() + 64) renew();
    return high;
  }

  void plan_again() {
    PlanProblem unlimited = problem;
    unlimited.capacity.reset();
    const Result<MemoryPlan> again =
        plan(unlimited, {.work_limit = std::min(kAgainWork, kAgainNodeWork * problem.lifetimes.size()), .threads = 1});
    if (!again || again->size >= size) return;
    std::vector<std::uint64_t> offsets;
    offsets.reserve(again->slots.size());
    for (const Slot& slot : again->slots) offsets.push_back(slot.offset);
    arrangement.replace(offsets);
    size = arrangement.top();
  }

  void renew() {
    std::vector<Node> nodes;
    nodes.reserve(arrangement.size());
    for (std::uint32_t i = 0; i < arrangement.size(); ++i) nodes.push_back(arrangement.node(i));
    arrangement = planner::Arrangement(std::move(nodes), problem.alignment);
  }

  PlanProblem problem;
  planner::Arrangement arrangement;
  std::uint64_t total = 0;  // bytes of all nodes
  std::uint64_t size = 0;
  double ratio = kNear;  // of size to bound that is aimed at
  std::vector<std::uint32_t> moved;
};

IncrementalPlan::IncrementalPlan(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
IncrementalPlan::IncrementalPlan(IncrementalPlan&&) noexcept = default;
IncrementalPlan& IncrementalPlan::operator=(IncrementalPlan&&) noexcept = default;
IncrementalPlan::~IncrementalPlan() = default;

Result<IncrementalPlan> IncrementalPlan::make(PlanProblem problem, const MemoryPlan& known) {
  if (const Violation violation = validate(problem, known)) {
    return Error::with_text(Code::kInvalidArgument, Layer::kPlan,
                            "the known plan is not one of this problem: " + describe(violation, problem, known));
  }
  BERTH_TRY(planner::check_plain(problem));
  std::uint64_t total = 0;
  for (const Lifetime& it : problem.lifetimes) {
    if (it.bytes > planner::kMostBytes - total) return too_much();
    total += it.bytes;
  }
  return IncrementalPlan(std::make_unique<State>(std::move(problem), known));
}

Result<IncrementalPlan::Outcome> IncrementalPlan::change(std::span<const Change> changes) {
  BERTH_TRY(state_->check(changes));
  state_->apply(changes);
  const bool again = state_->settle(changes.size());
  return Outcome{state_->size, lower_bound(), state_->moved, again};
}

std::size_t IncrementalPlan::nodes() const noexcept {
  return state_->problem.lifetimes.size();
}

std::uint64_t IncrementalPlan::offset(std::uint32_t node) const noexcept {
  return state_->arrangement.node(node).offset;
}

std::uint64_t IncrementalPlan::size() const noexcept {
  return state_->size;
}

std::uint64_t IncrementalPlan::lower_bound() const noexcept {
  return state_->arrangement.bound();
}

const PlanProblem& IncrementalPlan::problem() const noexcept {
  return state_->problem;
}

MemoryPlan IncrementalPlan::memory_plan() const {
  MemoryPlan made;
  made.slots.reserve(nodes());
  for (std::uint32_t i = 0; i < nodes(); ++i) {
    const std::uint64_t bytes = problem().lifetimes[i].bytes;
    made.slots.push_back(bytes == 0 ? Slot{} : Slot{offset(i), bytes, 0});
  }
  if (size() > 0) made.blocks.push_back({size(), 0, problem().lifetimes.front().lane});
  made.size = size();
  made.lower_bound = lower_bound();
  made.optimal = made.size == made.lower_bound;
  made.strategy = "incremental";
  made.fingerprint = fingerprint(problem());
  return made;
}

}  // namespace berth
