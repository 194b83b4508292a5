// Replanner: what a known plan and its problem say about other sizes. replan() is beside plan(), whose rules it keeps.
#include "berth/plan/replan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/try.h"
#include "plan/placement/known_order.h"
#include "plan/placement/model.h"

namespace berth {

using namespace internal;

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;
constexpr std::uint64_t kMostPadding = std::uint64_t{1} << 60;  // of all nodes: offsets stay in range

Result<void> check_plain(const PlanProblem& problem) {
  if (!problem.banks.empty() || problem.max_block_bytes != 0) {
    return Error(Code::kUnsupported, Layer::kPlan,
                 "the problem has {} banks and a block limit of {}; a Replanner needs one block without a limit: use "
                 "replan()",
                 problem.banks.size(), problem.max_block_bytes);
  }
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    const Lifetime& it = problem.lifetimes[i];
    if (!it.alias && !it.reuse_in_place && it.gaps.empty() && !it.offset && it.lane == problem.lifetimes.front().lane) {
      continue;
    }
    return Error(Code::kUnsupported, Layer::kPlan,
                 "node {} is an alias or in place of another, has gaps or a fixed offset, or is in another lane than "
                 "node 0; a Replanner needs plain lifetimes: use replan()",
                 i);
  }
  return {};
}

}  // namespace

Replanner::Replanner(std::unique_ptr<planner::KnownOrder> order) noexcept : order_(std::move(order)) {}
Replanner::Replanner(Replanner&&) noexcept = default;
Replanner& Replanner::operator=(Replanner&&) noexcept = default;
Replanner::~Replanner() = default;

Result<Replanner> Replanner::make(const PlanProblem& problem, const MemoryPlan& known) {
  BERTH_TRY(planner::build_models(problem, true));  // which checks the lifetimes
  BERTH_TRY(check_plain(problem));
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
  std::uint64_t largest = problem.alignment;
  for (const Lifetime& it : problem.lifetimes) largest = std::max(largest, it.alignment);
  if (largest > kMostPadding / (problem.lifetimes.size() + 1)) {
    return Error(Code::kUnsupported, Layer::kPlan,
                 "{} nodes with an alignment of up to {b} are more than a Replanner can hold; use replan()",
                 problem.lifetimes.size(), largest);
  }
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
    if (each > kMostBytes - total) {
      return Error(Code::kInvalidArgument, Layer::kPlan,
                   "the nodes' bytes sum to more than the {b} that a plan can hold; check the sizes", kMostBytes);
    }
    total += each;
  }
  const planner::KnownOrder::Placed placed = order_->place(bytes, offsets);
  return Placement{placed.top, placed.load};
}

std::size_t Replanner::nodes() const noexcept {
  return order_->size();
}

}  // namespace berth
