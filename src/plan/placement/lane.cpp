#include "plan/placement/lane.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "plan/placement/bounds.h"
#include "plan/placement/campaign.h"
#include "plan/placement/crew.h"
#include "plan/placement/ejection.h"
#include "plan/placement/hot_core.h"
#include "plan/placement/peaks.h"
#include "plan/placement/placer.h"
#include "plan/placement/pursuit.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::size_t kSearchable = 4096;   // items; above, one descent of the search takes too long
constexpr std::size_t kVeryMany = 200'000;  // items; above, one greedy rule takes seconds
constexpr std::size_t kManyInCore = 2000;   // items; above, descents are better than restarts
constexpr std::uint64_t kFirstTurn = 20'000;

// One greedy attempt: a named strategy, or an order of our own for first fit.
struct Attempt {
  std::string_view name;
  std::optional<Strategy> strategy;
  std::vector<std::uint32_t> (*order)(const Model&) = nullptr;

  Layout run(const Model& model, std::uint64_t seed, const Interrupt& interrupt) const {
    if (strategy) return run_strategy(model, *strategy, seed, &interrupt);
    return place_in_order(model, order(model), Fit::kFirst, &interrupt);
  }
};

Attempt named(Strategy strategy) {
  return {strategy_name(strategy), strategy};
}

template <int kPercent>
std::vector<std::uint32_t> by_heat(const Model& model) {
  return order_by_heat(model, kPercent / 100.0);
}

class Lane {
 public:
  Lane(const Model& model, const Model* loose, const LaneLimits& limits, const LaneProgress& progress)
      : model_(model), loose_(loose), limits_(limits), progress_(progress), crew_(limits.threads) {
    result_.best.top = kNowhere;
    result_.lower_bound = load_bound(model);
  }

  LaneAnswer run() {
    // One greedy round in search nodes: both cost a few nanoseconds for each item they look at.
    round_ = 1 + model_.items.size() / 4 + overlapping_pairs(model_) / 2000;
    if (model_.items.size() <= kSearchable) {
      run_small();
    } else {
      run_large();
    }
    return {std::move(result_), loose_wins_};
  }

 private:
  void run_small() {
    attempt({named(Strategy::kSmallestGap)});
    if (!limits_.minimise) pursue(300, false);
    attempt({named(Strategy::kSizeFirstFit),
             named(Strategy::kXlaSpatial),
             named(Strategy::kXlaTemporal),
             named(Strategy::kBreadth),
             named(Strategy::kOnlineBestFit),
             {"hot_first", {}, by_heat<5>}});
    pursue(40, false);
    if (hill_climb_rounds(model_) > 1) attempt({named(Strategy::kHillClimb)});
    pursue(0, true);
  }

  // What shares no time is searched separately, each with restarts of its own: one that fails does not undo what the
  // others found.
  void open_pursuits() {
    if (pursuits_.empty()) {
      const Layout start = searchable_best();
      std::vector<Portion> portions = split_in_time(model_);
      pursuits_.reserve(portions.size());
      for (Portion& portion : portions) pursuits_.emplace_back(std::move(portion), start, !loose_wins_);
    } else if (!loose_wins_) {
      for (Pursuit& each : pursuits_) each.offer(result_.best);
    }
  }

  // Whose turn it is. If only the goal counts, all must reach it, and who had least goes on; else the highest decides.
  Pursuit* next_pursuit() {
    const std::uint64_t goal = std::max(limits_.goal, result_.lower_bound);
    Pursuit* next = nullptr;
    for (Pursuit& each : pursuits_) {
      if (each.best().top <= goal) continue;
      const bool better = !next || (limits_.minimise ? each.best().top > next->best().top : each.work() < next->work());
      if (better) next = &each;
    }
    return next;
  }

  // Turns of the exact search alone, for about `restarts` of each portion, or of both searches until the end. Turns
  // grow, so that a proof has time enough.
  void pursue(std::uint64_t restarts, bool both) {
    if (done() || stopped() || result_.work >= limits_.work) return;
    open_pursuits();
    std::uint64_t until = limits_.work;
    if (!both) {
      std::uint64_t share = 0;
      for (const Pursuit& each : pursuits_) share += restarts * (600 + 2 * each.portion().items.size());
      until = std::min(until, result_.work + share);
    }
    while (!done() && !stopped() && result_.work < until) {
      Pursuit* const next = next_pursuit();
      if (!next) return;
      const std::size_t count = next->portion().items.size();
      const std::uint64_t left = until - result_.work, before = result_.work;
      // A small portion is mostly finished by the exact search alone.
      const bool alone = !both || (count <= kProvable && next->work() < std::min(limits_.work / 2, kDefaultWork));
      std::uint64_t turn = std::max<std::uint64_t>(alone ? 20 * (600 + 2 * count) : kFirstTurn, next->work() / 4);
      turn = std::min(turn, alone ? left : left / 2 + 1);
      const Pursuit::Limits limits{std::max(limits_.goal, result_.lower_bound), limits_.minimise, turn, limits_.seed,
                                   limits_.interrupt};
      const auto progress = [&] {
        if (take(*next)) report();
      };
      const std::uint64_t spent =
          alone ? next->search(limits, limits_.threads, progress) : next->search_both(limits, crew_, progress);
      result_.work = before + spent;
      if (take(*next)) report();
      if (spent == 0) return;  // nothing more can be done
    }
  }

  // Makes the best of what the portions have. True if something got better.
  bool take(const Pursuit& changed) {
    const std::uint64_t bound = result_.lower_bound;
    result_.lower_bound = std::max(bound, changed.lower_bound());
    std::uint64_t top = 0;
    for (const Pursuit& each : pursuits_) top = std::max(top, each.best().top);
    if (top >= result_.best.top) return result_.lower_bound > bound;
    result_.best.offsets.resize(model_.items.size());
    for (const Pursuit& each : pursuits_) {
      for (std::size_t i = 0; i < each.portion().items.size(); ++i) {
        result_.best.offsets[each.portion().items[i]] = each.best().offsets[i];
      }
    }
    result_.best.top = top;
    result_.strategy = changed.strategy();
    loose_wins_ = false;
    return true;
  }

  void run_large() {
    attempt({named(Strategy::kOnlineBestFit)});
    if (model_.items.size() > kVeryMany) lower();
    attempt({{"hot_first", {}, by_heat<5>}, {"size_and_length", {}, order_by_size_and_length}});
    attempt({named(Strategy::kBreadth), named(Strategy::kSizeFirstFit)});
    core(kWholeCore, CoreSearch::kDescents, kManyInCore);
    core(kCores[0], CoreSearch::kRestarts);
    if (model_.items.size() <= kVeryMany) lower();
    core(kWholeCore, CoreSearch::kDescents);
    for (std::size_t shape = 1; shape < std::size(kCores); ++shape) core(kCores[shape], CoreSearch::kRestarts);
    // Against the clock it is better to improve early; otherwise all rules are heard first.
    if (limits_.interrupt.deadline) eject(limits_.work, 0.5);
    attempt({{"hot_first", {}, by_heat<2>}, {"hot_first", {}, by_heat<10>}});
    attempt({named(Strategy::kXlaTemporal), named(Strategy::kSmallestGap)});
    attempt({named(Strategy::kXlaSpatial), {"hot_first", {}, by_heat<20>}});
    if (hill_climb_rounds(model_) > 1) attempt({named(Strategy::kHillClimb)});
    eject(limits_.work, 1.0);
  }

  // Too small a core is disastrous, and which is large enough differs: a few are tried, and the best is kept.
  static constexpr CoreShape kCores[] = {{0.2, 1e-5}, {0.2, 1e-4}, {0.1, 1e-5}, {0.3, 1e-4}, {0.1, 1e-4}, {0.3, 1e-3}};
  // Descents leave no room between the items of the core, not even for the tiny ones.
  static constexpr CoreShape kWholeCore = {0.2, 0};
  static constexpr std::uint64_t kCoreWork = 400'000;
  void core(const CoreShape& shape, CoreSearch search, std::size_t fewest = 0) {
    if (model_.has_fixed || loose_ || model_.items.size() > kVeryMany) return;
    if (done() || stopped() || result_.work >= limits_.work) return;
    const std::uint64_t left = limits_.work - result_.work;
    const std::uint64_t work = search == CoreSearch::kRestarts ? std::min(kCoreWork, left / 4) : left / 2;
    const ImprovementLimits limits{std::max(limits_.goal, result_.lower_bound), work, round_, limits_.seed + fewest,
                                   limits_.interrupt};
    Improvement found = place_around_core(model_, shape, search, fewest, result_.best, limits, crew_);
    result_.work += found.work;
    if (found.best.top >= result_.best.top) return;
    result_.best = std::move(found.best);
    result_.strategy = "hot_core";
    report();
  }

  void lower() {
    if (model_.has_fixed || loose_) return;
    improve(lower_peaks, "lowered_peaks", limits_.work, limits_.seed, 1.0);
  }

  void eject(std::uint64_t work, double share) {
    if (loose_wins_) return;
    improve(improve_by_ejection, "ejection", work, limits_.seed + ejections_++, share);
  }

  using Improve = Improvement (*)(const Model&, Layout, const ImprovementLimits&, Crew&, const ImprovementProgress&);
  // `share`: of the time that is left, where there is a deadline.
  void improve(Improve method, std::string_view name, std::uint64_t work, std::uint64_t seed, double share) {
    if (done() || stopped() || result_.work >= limits_.work) return;
    const std::uint64_t before = result_.work;
    ImprovementLimits limits{std::max(limits_.goal, result_.lower_bound), std::min(work, limits_.work - before), round_,
                             seed, limits_.interrupt};
    if (limits.interrupt.deadline && share < 1.0) {
      const Clock::time_point now = Clock::now();
      const std::chrono::duration<double> left = std::max(now, *limits.interrupt.deadline) - now;
      limits.interrupt.deadline = now + std::chrono::duration_cast<Clock::duration>(share * left);
    }
    const auto take = [&](const Improvement& found) {
      result_.work = before + found.work;
      if (found.best.top >= result_.best.top) return;
      result_.best = found.best;
      result_.strategy = name;
      report();
    };
    take(method(model_, result_.best, limits, crew_, take));
  }

  bool done() const {
    const std::uint64_t goal = std::max(limits_.goal, result_.lower_bound);
    return result_.best.top <= goal || (!limits_.minimise && limits_.goal < result_.lower_bound);
  }
  bool stopped() const { return limits_.interrupt.out_of_time(); }

  void report() const {
    if (progress_) progress_(result_);
  }

  // Makes all of these attempts, on as many threads as there are, and keeps the best; of equals the first. The very
  // first attempt of a lane cannot be interrupted: there must be a plan.
  void attempt(const std::vector<Attempt>& attempts) {
    if (done() || (stopped() && result_.best.top != kNowhere)) return;
    std::vector<const Model*> models{&model_};
    if (loose_) models.push_back(loose_);
    const Interrupt none;
    const Interrupt& interrupt = result_.best.top == kNowhere ? none : limits_.interrupt;
    std::vector<Layout> layouts(attempts.size() * models.size());
    std::atomic<std::size_t> next{0};
    const auto work = [&](unsigned) {
      for (std::size_t i; (i = next.fetch_add(1)) < layouts.size();) {
        layouts[i] = attempts[i / models.size()].run(*models[i % models.size()], limits_.seed, interrupt);
      }
    };
    if (layouts.size() > 1 && round_ > 1000) {
      crew_.run(work);
    } else {
      work(0);
    }
    bool better = false;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const Attempt& made = attempts[i / models.size()];
      result_.work += made.strategy == Strategy::kHillClimb ? hill_climb_rounds(model_) * round_ : round_;
      if (layouts[i].top >= result_.best.top) continue;
      result_.best = std::move(layouts[i]);
      result_.strategy = made.name;
      loose_wins_ = models[i % models.size()] == loose_;
      better = true;
    }
    if (better) report();
  }

  // Offsets found without in-place reuse are no guide for the items joined by it: only their top counts.
  Layout searchable_best() const {
    return loose_wins_ ? Layout{std::vector<std::uint64_t>(model_.items.size(), 0), result_.best.top} : result_.best;
  }

  const Model& model_;
  const Model* loose_;
  const LaneLimits& limits_;
  const LaneProgress& progress_;
  Crew crew_;
  LaneResult result_;
  std::uint64_t round_ = 0;
  std::uint64_t ejections_ = 0;
  std::vector<Pursuit> pursuits_;  // in order of time; none before the first search
  bool loose_wins_ = false;
};

}  // namespace

LaneAnswer plan_lane(const Model& model, const Model* loose, const LaneLimits& limits, const LaneProgress& progress) {
  return Lane(model, loose, limits, progress).run();
}

}  // namespace berth::internal::planner
