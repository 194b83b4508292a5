// plan() and related functions: one model per lane in, slots out.
#include "berth/plan/plan.h"

#include <algorithm>
#include <thread>

#include "base/try.h"
#include "berth/plan/replan.h"
#include "plan/placement/bounds.h"
#include "plan/placement/lane.h"
#include "plan/placement/model.h"
#include "plan/placement/near_known.h"
#include "plan/placement/placer.h"
#include "plan/placement/strategies.h"

namespace berth {
namespace internal::planner {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// The largest block that a bank and the block limit allow.
std::uint64_t single_block_limit(const PlanProblem& problem, std::span<const std::uint64_t> used) {
  std::uint64_t limit = problem.max_block_bytes == 0 ? kNoLimit : problem.max_block_bytes;
  if (!problem.banks.empty() && problem.banks[0].capacity != 0) {
    const std::uint64_t capacity = problem.banks[0].capacity;
    limit = std::min(limit, capacity > used[0] ? capacity - used[0] : 0);
  }
  return limit;
}

// The largest block that any bank from `bank` on allows.
std::uint64_t largest_block(const PlanProblem& problem, std::uint32_t bank) {
  std::uint64_t largest = problem.banks.empty() ? kNoLimit : 0;
  for (std::size_t b = bank; b < problem.banks.size(); ++b) {
    largest = std::max(largest, problem.banks[b].capacity == 0 ? kNoLimit : problem.banks[b].capacity);
  }
  return problem.max_block_bytes == 0 ? largest : std::min(largest, problem.max_block_bytes);
}

Result<void> check_items(const PlanProblem& problem, const Model& model) {
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const Item& item = model.items[model.item_of[n]];
    const std::uint64_t largest = largest_block(problem, item.bank);
    const std::uint64_t end = item.height + (item.fixed == kNowhere ? 0 : item.fixed);
    if (end > largest) {
      return Error(Code::kInfeasible, Layer::kPlan,
                   "node {} ends at {b}, but the largest block it can be in has {b}; raise the limit or split the node",
                   model.nodes[n], end, largest);
    }
  }
  if (!model.has_fixed) return {};
  Placer placer(model);
  for (std::uint32_t i = 0; i < model.items.size(); ++i) {
    const Item& item = model.items[i];
    if (item.fixed == kNowhere) continue;
    const std::uint64_t offset = Space().base(item.bank) + item.fixed;
    if (!placer.free_at(i, offset)) {
      const auto at = std::find(model.item_of.begin(), model.item_of.end(), i) - model.item_of.begin();
      return Error(Code::kInfeasible, Layer::kPlan,
                   "node {} is fixed at offset {} where another fixed node is alive at the same time",
                   model.nodes[static_cast<std::size_t>(at)], item.fixed);
    }
    placer.put(i, offset);
  }
  return {};
}

class Planning {
 public:
  Planning(const PlanProblem& problem, const PlanOptions& options)
      : problem_(problem),
        options_(options),
        begin_(Clock::now()),
        used_(std::max<std::size_t>(1, problem.banks.size()), 0) {
    interrupt_.cancel = options.cancel;
    if (options.time_limit) {
      interrupt_.deadline = begin_ + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(std::clamp(*options.time_limit, 0.0, 1e8)));
    }
    work_limit_ = options.work_limit ? *options.work_limit : options.time_limit ? kNoLimit : kDefaultWork;
    threads_ = options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
    threads_ = std::min(threads_, 64u);
  }

  // With `only`, runs only that strategy; with `known`, only places near that plan.
  Result<MemoryPlan> run(const Strategy* only, const MemoryPlan* known = nullptr) {
    const bool in_place = has_in_place(problem_);
    BERTH_TRY_ASSIGN(models_, build_models(problem_, true));
    if (in_place) {
      BERTH_TRY_ASSIGN(loose_, build_models(problem_, false));
    }
    plan_.fingerprint = fingerprint(problem_);
    plan_.slots.resize(problem_.lifetimes.size());
    bounds_.resize(models_.size());
    for (std::size_t lane = 0; lane < models_.size(); ++lane) {
      BERTH_TRY(check_items(problem_, models_[lane]));
      bounds_[lane] = split_bound(models_[lane]);
    }
    if (problem_.capacity && bound() > *problem_.capacity) return infeasible();
    BERTH_TRY(check_banks());
    for (lane_ = 0; lane_ < models_.size(); ++lane_) {
      BERTH_TRY(only ? plan_one(*only) : known ? plan_near(*known) : plan_this_lane());
    }
    plan_.lower_bound = bound();
    plan_.optimal = plan_.size == plan_.lower_bound;
    plan_.seconds = seconds();
    if (problem_.capacity && plan_.size > *problem_.capacity) {
      if (plan_.lower_bound > *problem_.capacity) return infeasible();
      if (options_.cancel.stop_requested()) {
        return Error(Code::kCancelled, Layer::kPlan,
                     "stopped before a plan within the capacity of {b} was found; smallest so far {b}",
                     *problem_.capacity, plan_.size);
      }
      return Error(Code::kNotFound, Layer::kPlan,
                   "no plan within the capacity of {b} was found within the limit; smallest {b}, lower bound {b}",
                   *problem_.capacity, plan_.size, plan_.lower_bound);
    }
    return std::move(plan_);
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  std::uint64_t bound() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : bounds_) sum += lane;
    return sum;
  }

  bool several_blocks() const { return problem_.banks.size() > 1 || problem_.max_block_bytes != 0; }

  // A bound for any number of blocks.
  std::uint64_t split_bound(const Model& model) const {
    if (!several_blocks()) return load_bound(model);
    Model unaligned = model;  // with several blocks nothing forces the padding between neighbours
    unaligned.alignment = 1;
    for (Item& item : unaligned.items) item.alignment = 1;
    return load_bound(unaligned);
  }

  Error infeasible() const {
    return Error(Code::kInfeasible, Layer::kPlan,
                 "proven impossible: every plan needs at least {b}, the capacity is {b}", bound(), *problem_.capacity);
  }

  Result<void> check_banks() const {
    std::uint64_t total = 0;
    for (const Bank& bank : problem_.banks) {
      if (bank.capacity == 0) return {};
      total += bank.capacity;
    }
    if (problem_.banks.empty() || bound() <= total) return {};
    return Error(Code::kInfeasible, Layer::kPlan,
                 "proven impossible: every plan needs at least {b}, all banks hold {b}", bound(), total);
  }

  bool plain_possible(const Model& model) const {
    return std::all_of(model.items.begin(), model.items.end(), [](const Item& item) { return item.bank == 0; }) &&
           bounds_[lane_] <= single_block_limit(problem_, used_);
  }

  Result<void> plan_one(Strategy strategy) {
    Model& model = models_[lane_];
    Layout layout{{}, kNowhere};
    if (plain_possible(model)) layout = run_strategy(model, strategy, options_.seed);
    if (layout.top == kNowhere || layout.top > single_block_limit(problem_, used_)) {
      model.space = Space(problem_, used_, model.alignment);
      layout = run_strategy(model, strategy, options_.seed);
      if (layout.top == kNowhere) return no_room();
    }
    plan_.strategy = strategy_name(strategy);
    settle(model, layout);
    return {};
  }

  Result<void> plan_near(const MemoryPlan& known) {
    Model& model = models_[lane_];
    std::vector<KnownItem> items(model.items.size());
    for (std::size_t n = 0; n < model.nodes.size(); ++n) {
      const std::uint32_t node = model.nodes[n];
      KnownItem& item = items[model.item_of[n]];
      if (!known.has(node) || known.slots[node].offset < model.delta[n]) continue;
      const bool same = known.slots[node].bytes == problem_.lifetimes[node].bytes;
      item.same = same && (item.same || item.offset == kNowhere);
      item.offset = known.slots[node].offset - model.delta[n];
    }
    Layout layout{{}, kNowhere};
    if (plain_possible(model)) layout = place_near_known(model, items);
    plan_.strategy = "near_known";
    if (layout.top == kNowhere || layout.top > single_block_limit(problem_, used_)) {
      model.space = Space(problem_, used_, model.alignment);
      LaneResult found = plan_split(model, options_.seed);
      if (found.best.top == kNowhere) return no_room();
      plan_.strategy = found.strategy;
      layout = std::move(found.best);
    }
    settle(model, layout);
    return {};
  }

  Result<void> plan_this_lane() {
    Model& model = models_[lane_];
    Model* loose = loose_.empty() ? nullptr : &loose_[lane_];
    const std::uint64_t limit = single_block_limit(problem_, used_);
    if (plain_possible(model)) {
      LaneLimits limits;
      const bool fit_only = problem_.capacity && !options_.smallest && models_.size() == 1;
      limits.goal = fit_only ? std::min(*problem_.capacity, limit) : 0;
      limits.minimise = !fit_only;
      limits.work = work_limit_ > plan_.work ? work_limit_ - plan_.work : 0;
      limits.threads = threads_;
      limits.seed = options_.seed;
      limits.interrupt = interrupt_;
      LaneAnswer answer = plan_lane(model, loose, limits, [&](const LaneResult& found) { report(found); });
      // What is impossible in one block may be possible in several.
      if (!several_blocks()) bounds_[lane_] = std::max(bounds_[lane_], answer.result.lower_bound);
      plan_.work += answer.result.work;
      if (answer.result.best.top <= limit) {
        const Model& winner = answer.loose_wins ? *loose : model;
        prefer_hints(winner, answer.result);
        plan_.strategy = answer.result.strategy;
        settle(winner, answer.result.best);
        return {};
      }
    }
    model.space = Space(problem_, used_, model.alignment);
    LaneResult found = plan_split(model, options_.seed);
    plan_.work += found.work;
    if (found.best.top == kNowhere && loose) {
      loose->space = model.space;
      found = plan_split(*loose, options_.seed);
      plan_.work += found.work;
      if (found.best.top == kNowhere) return no_room();
      plan_.strategy = found.strategy;
      settle(*loose, found.best);
      return {};
    }
    if (found.best.top == kNowhere) return no_room();
    plan_.strategy = found.strategy;
    settle(model, found.best);
    return {};
  }

  Error no_room() const {
    return Error(Code::kNotFound, Layer::kPlan,
                 "no rule found room in the banks and blocks for all nodes; lower bound {b}: give the banks more",
                 bound());
  }

  // A layout that follows the hints is used if it is not larger.
  void prefer_hints(const Model& model, LaneResult& result) const {
    const bool hinted =
        std::any_of(model.items.begin(), model.items.end(), [](const Item& it) { return it.hint != kNowhere; });
    if (!hinted) return;
    Layout layout = place_in_order(model, order_by_size(model), Fit::kNearHint);
    if (layout.top > result.best.top) return;
    result.best = std::move(layout);
    result.strategy = "hints";
  }

  void report(const LaneResult& found) {
    if (!options_.progress || found.best.top == kNowhere) return;
    // Lanes that are not planned yet count with their lower bound, so the numbers are meaningful, and reported, only
    // for the last lane.
    if (lane_ + 1 != models_.size()) return;
    PlanProgress progress;
    progress.best = plan_.size + found.best.top;
    progress.lower_bound =
        several_blocks() ? bound() : bound() - bounds_[lane_] + std::max(bounds_[lane_], found.lower_bound);
    progress.gap = progress.lower_bound == 0 ? 0
                                             : static_cast<double>(progress.best - progress.lower_bound) /
                                                   static_cast<double>(progress.lower_bound);
    progress.work = plan_.work + found.work;
    progress.seconds = seconds();
    progress.strategy = found.strategy;
    options_.progress(progress);
  }

  // Turns a lane's offsets into slots and blocks.
  void settle(const Model& model, const Layout& layout) {
    const auto first_block = static_cast<std::uint32_t>(plan_.blocks.size());
    const std::vector<BlockBytes> blocks = block_bytes(model, layout);
    for (const BlockBytes& block : blocks) {
      plan_.blocks.push_back({block.bytes, block.bank, model.lane});
      plan_.size += block.bytes;
      used_[block.bank] += block.bytes;
    }
    for (std::size_t n = 0; n < model.nodes.size(); ++n) {
      const Space::Address at = model.space.address(layout.offsets[model.item_of[n]]);
      const auto block =
          std::lower_bound(blocks.begin(), blocks.end(), at, [](const BlockBytes& a, const Space::Address& b) {
            return std::pair(a.bank, a.block) < std::pair(b.bank, b.block);
          });
      Slot& slot = plan_.slots[model.nodes[n]];
      slot.offset = at.offset + model.delta[n];
      slot.bytes = problem_.lifetimes[model.nodes[n]].bytes;
      slot.block = first_block + static_cast<std::uint32_t>(block - blocks.begin());
    }
  }

  const PlanProblem& problem_;
  const PlanOptions& options_;
  const Clock::time_point begin_;
  Interrupt interrupt_;
  std::uint64_t work_limit_ = 0;
  unsigned threads_ = 1;
  std::vector<Model> models_, loose_;
  std::vector<std::uint64_t> bounds_;
  std::vector<std::uint64_t> used_;  // of each bank
  std::size_t lane_ = 0;
  MemoryPlan plan_;
};

}  // namespace
}  // namespace internal::planner

using namespace internal;

Result<MemoryPlan> plan(const PlanProblem& problem, const PlanOptions& options) {
  return planner::Planning(problem, options).run(nullptr);
}

Result<MemoryPlan> plan(std::initializer_list<Lifetime> lifetimes, const PlanOptions& options) {
  PlanProblem problem;
  problem.lifetimes.assign(lifetimes.begin(), lifetimes.end());
  return plan(problem, options);
}

Result<MemoryPlan> replan(const PlanProblem& problem, const MemoryPlan& known) {
  const PlanOptions options;
  return planner::Planning(problem, options).run(nullptr, &known);
}

Result<MemoryPlan> plan_with(std::string_view strategy, const PlanProblem& problem, const PlanOptions& options) {
  for (const planner::Strategy known : planner::kStrategies) {
    if (planner::strategy_name(known) == strategy) return planner::Planning(problem, options).run(&known);
  }
  std::string names;
  for (const StrategyInfo& info : strategies()) names += (names.empty() ? "" : ", ") + std::string(info.name);
  return Error::with_text(Code::kNotFound, Layer::kPlan,
                          "no strategy is named \"" + std::string(strategy) + "\"; there are " + names);
}

Result<std::uint64_t> plan_lower_bound(const PlanProblem& problem) {
  BERTH_TRY_ASSIGN(const std::vector<planner::Model> models, planner::build_models(problem, true));
  std::uint64_t sum = 0;
  for (const planner::Model& model : models) sum += planner::load_bound(model);
  return sum;
}

}  // namespace berth
