#include "plan/placement/lane.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "plan/placement/bounds.h"
#include "plan/placement/campaign.h"
#include "plan/placement/conflicts.h"
#include "plan/placement/crew.h"
#include "plan/placement/ejection.h"
#include "plan/placement/peaks.h"
#include "plan/placement/placer.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::size_t kSearchable = 4096;   // items; above, one descent of the search takes too long
constexpr std::size_t kProvable = 100;      // items; below, the exact search may well finish
constexpr std::size_t kVeryMany = 200'000;  // items; above, one greedy rule takes seconds
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
    result_.lower_bound = load_ = load_bound(model);
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
    if (!limits_.minimise) campaign(300 * (600 + 2 * model_.items.size()));
    attempt({named(Strategy::kSizeFirstFit),
             named(Strategy::kXlaSpatial),
             named(Strategy::kXlaTemporal),
             named(Strategy::kBreadth),
             named(Strategy::kOnlineBestFit),
             {"hot_first", {}, by_heat<5>}});
    const Layout greedy = searchable_best();
    campaign(40 * (600 + 2 * model_.items.size()));
    if (hill_climb_rounds(model_) > 1) attempt({named(Strategy::kHillClimb)});
    search(greedy);
  }

  // The exact search and the conflict search by turns, or side by side where there are two threads. They share what
  // they found only between turns. Turns grow, so that a proof has time enough. The conflict search keeps to its own
  // way down from the greedy layout, because it learns on the way; the exact search is guided by where it is.
  void search(const Layout& greedy) {
    std::optional<ConflictSearch> conflicts;
    if (model_.items.size() <= kProvable) campaign(std::min(limits_.work / 2, kDefaultWork));
    side_by_side_ = ConflictSearch::suits(model_);
    if (side_by_side_) conflicts.emplace(model_, greedy, limits_.seed);
    while (!done() && !stopped() && result_.work < limits_.work) {
      const std::uint64_t left = limits_.work - result_.work;
      if (!conflicts) return campaign(left);
      const std::uint64_t turn = std::min(std::max<std::uint64_t>(kFirstTurn, result_.work / 4), left / 2 + 1);
      const Layout hint = conflicts->nearest();
      const std::uint64_t before = result_.work;
      crew_.run([&](unsigned who) {
        if (who == 0) campaign(turn, &hint);
        if (who == 1 || crew_.size() == 1) {
          conflicts->improve({std::max(limits_.goal, load_), turn, limits_.interrupt});
        }
      });
      result_.work += conflicts->work();
      if (conflicts->best().top < result_.best.top) {
        result_.best = conflicts->best();
        result_.strategy = "conflict_search";
        loose_wins_ = false;
        report();
      }
      if (result_.work == before) return;  // neither can do any more
    }
  }

  void run_large() {
    attempt({named(Strategy::kOnlineBestFit)});
    if (model_.items.size() > kVeryMany) lower();
    attempt({{"hot_first", {}, by_heat<5>}, {"size_and_length", {}, order_by_size_and_length}});
    if (model_.items.size() <= kVeryMany) lower();
    attempt({named(Strategy::kBreadth), named(Strategy::kSizeFirstFit)});
    // Against the clock it is better to improve early; otherwise all rules are heard first.
    if (limits_.interrupt.deadline) eject(limits_.work);
    attempt({{"hot_first", {}, by_heat<2>}, {"hot_first", {}, by_heat<10>}});
    attempt({named(Strategy::kXlaTemporal), named(Strategy::kSmallestGap)});
    attempt({named(Strategy::kXlaSpatial), {"hot_first", {}, by_heat<20>}});
    if (hill_climb_rounds(model_) > 1) attempt({named(Strategy::kHillClimb)});
    eject(limits_.work);
  }

  void lower() {
    if (model_.has_fixed || loose_) return;
    improve(lower_peaks, "lowered_peaks", limits_.work, limits_.seed);
  }

  void eject(std::uint64_t work) {
    if (loose_wins_) return;
    improve(improve_by_ejection, "ejection", work, limits_.seed + ejections_++);
  }

  using Improve = Improvement (*)(const Model&, Layout, const ImprovementLimits&, Crew&, const ImprovementProgress&);
  void improve(Improve method, std::string_view name, std::uint64_t work, std::uint64_t seed) {
    if (done() || stopped() || result_.work >= limits_.work) return;
    const std::uint64_t before = result_.work;
    const ImprovementLimits limits{std::max(limits_.goal, result_.lower_bound), std::min(work, limits_.work - before),
                                   round_, seed, limits_.interrupt};
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

  void campaign(std::uint64_t work, const Layout* hint = nullptr) {
    if (done() || stopped() || result_.work >= limits_.work) return;
    CampaignLimits limits{limits_.goal,
                          limits_.minimise,
                          std::min(work, limits_.work - result_.work),
                          std::max(1u, limits_.threads - (side_by_side_ ? 1 : 0)),
                          limits_.seed,
                          limits_.interrupt,
                          hint};
    const Layout start = searchable_best();
    const std::uint64_t before = result_.work;
    const auto take = [&](const CampaignResult& found) {
      result_.work = before + found.work;
      result_.lower_bound = std::max(result_.lower_bound, found.lower_bound);
      if (!found.strategy.empty() && found.best.top < result_.best.top) {
        result_.best = found.best;
        result_.strategy = found.strategy;
        loose_wins_ = false;
      }
    };
    take(run_campaign(model_, start, result_.lower_bound, limits, memory_, [&](const CampaignResult& found) {
      take(found);
      report();
    }));
  }

  const Model& model_;
  const Model* loose_;
  const LaneLimits& limits_;
  const LaneProgress& progress_;
  Crew crew_;
  LaneResult result_;
  std::uint64_t load_ = 0;  // the bound before any search
  std::uint64_t round_ = 0;
  std::uint64_t ejections_ = 0;
  CampaignMemory memory_;
  bool loose_wins_ = false;
  bool side_by_side_ = false;  // the search shares its threads with another
};

}  // namespace

LaneAnswer plan_lane(const Model& model, const Model* loose, const LaneLimits& limits, const LaneProgress& progress) {
  return Lane(model, loose, limits, progress).run();
}

}  // namespace berth::internal::planner
