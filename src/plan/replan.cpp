// Replanner: what a known plan and its problem say about other sizes. replan() is beside plan(), whose rules it keeps.
#include "berth/plan/replan.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/try.h"
#include "plan/placement/known_order.h"
#include "plan/placement/model.h"
#include "plan/placement/random.h"
#include "plan/plain.h"

namespace berth {

using namespace internal;

Replanner::Replanner(std::unique_ptr<planner::KnownOrder> order) noexcept : order_(std::move(order)) {}
Replanner::Replanner(Replanner&&) noexcept = default;
Replanner& Replanner::operator=(Replanner&&) noexcept = default;
Replanner::~Replanner() = default;

Result<Replanner> Replanner::make(const PlanProblem& problem, const MemoryPlan& known) {
  BERTH_TRY(planner::build_models(problem, true));  // which checks the lifetimes
  BERTH_TRY(planner::check_plain(problem));
  if (known.slots.size() != problem.lifetimes.size()) {
    return Error(Code::kInvalidArgument, Layer::kPlan,
                 "the known plan has {} slots for {} lifetimes; give the plan of this problem", known.slots.size(),
                 problem.lifetimes.size());
  }
  LevelRange all{0, 1};
  bool any = false;
  for (const Lifetime& it : problem.lifetimes) {
    if (it.pinned || it.last <= it.first) continue;
    all.first = any ? std::min(all.first, it.first) : it.first;
    all.last = any ? std::max(all.last, it.last) : it.last;
    any = true;
  }
  std::vector<planner::KnownOrder::Node> nodes;
  nodes.reserve(problem.lifetimes.size());
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    const Lifetime& it = problem.lifetimes[i];
    const bool plain = !it.pinned && it.last > it.first;  // a node of zero bytes may have no levels: it gets them all
    nodes.push_back({plain ? LevelRange{it.first, it.last} : all, std::max(it.alignment, problem.alignment),
                     known.has(i) ? known.slots[i].offset : planner::kNowhere});
  }
  return Replanner(std::make_unique<planner::KnownOrder>(nodes));
}

Result<Replanner::Placement> Replanner::place(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets) {
  if (bytes.size() != nodes() || offsets.size() != nodes()) {
    return Error(Code::kInvalidArgument, Layer::kPlan, "{} sizes and {} offsets for {} nodes; give one of each a node",
                 bytes.size(), offsets.size(), nodes());
  }
  std::uint64_t total = 0;
  for (const std::uint64_t each : bytes) {
    if (each > planner::kMostBytes - total) {
      return Error(Code::kInvalidArgument, Layer::kPlan,
                   "the nodes' bytes sum to more than the {b} that a plan can hold; check the sizes",
                   planner::kMostBytes);
    }
    total += each;
  }
  const planner::KnownOrder::Placed placed = order_->place(bytes, offsets);
  return Placement{placed.top, placed.load};
}

Result<void> Replanner::learn(const MemoryPlan& known) {
  if (known.slots.size() != nodes()) {
    return Error(Code::kInvalidArgument, Layer::kPlan, "the plan has {} slots for {} nodes; give one of the same nodes",
                 known.slots.size(), nodes());
  }
  std::vector<std::uint64_t> offsets(nodes());
  for (std::size_t i = 0; i < nodes(); ++i) offsets[i] = known.has(i) ? known.slots[i].offset : planner::kNowhere;
  order_->learn(offsets);
  return {};
}

Result<void> Replanner::rehearse(PlanProblem problem, std::size_t times, const PlanOptions& options) {
  if (problem.lifetimes.size() != nodes()) {
    return Error(Code::kInvalidArgument, Layer::kPlan,
                 "the problem has {} lifetimes for {} nodes; give the same problem", problem.lifetimes.size(), nodes());
  }
  std::vector<std::uint64_t> bytes;
  for (const Lifetime& it : problem.lifetimes) bytes.push_back(it.bytes);
  problem.capacity.reset();
  for (std::size_t time = 0; time < times; ++time) {
    planner::Random random(options.seed, time);
    const std::uint64_t together = random.next();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool alone = time % 2 == 0;
      const double chance = (alone ? random : planner::Random(together, bytes[i])).unit();
      const double factor = alone ? 0.7 + 0.6 * chance : std::exp2(2 * chance - 1);
      problem.lifetimes[i].bytes = static_cast<std::uint64_t>(std::ceil(factor * static_cast<double>(bytes[i])));
    }
    BERTH_TRY_ASSIGN(const MemoryPlan known, plan(problem, options));
    BERTH_TRY(learn(known));
  }
  return {};
}

std::size_t Replanner::nodes() const noexcept {
  return order_->size();
}

}  // namespace berth
