#include "planner/lane.h"

#include <algorithm>

#include "planner/bounds.h"
#include "planner/campaign.h"
#include "planner/placer.h"
#include "planner/strategies.h"

namespace berth::planner {
namespace {

constexpr std::size_t kSearchable = 4096;  // items; above, the search would take seconds for one descent

class Lane {
 public:
  Lane(const Model& model, const Model* loose, const LaneLimits& limits, const LaneProgress& progress)
      : model_(model), loose_(loose), limits_(limits), progress_(progress) {
    result_.best.top = kNowhere;
    result_.lower_bound = load_bound(model);
  }

  LaneAnswer run() {
    std::uint64_t pairs = overlapping_pairs(model_);
    round_ = 1 + (model_.items.size() + pairs) / 256;  // work of one greedy round, in search nodes
    const bool small = model_.items.size() <= kSearchable;
    greedy(Strategy::kSmallestGap);
    if (small && !limits_.minimise) campaign(limits_.work / 8);
    for (const Strategy strategy : kStrategies) {
      if (strategy == Strategy::kSmallestGap || strategy == Strategy::kHillClimb) continue;
      greedy(strategy);
    }
    if (small) campaign(40 * (600 + 2 * model_.items.size()));
    greedy(Strategy::kHillClimb);
    if (small) campaign(limits_.work);
    return {std::move(result_), loose_wins_};
  }

 private:
  bool done() const {
    const std::uint64_t goal = std::max(limits_.goal, result_.lower_bound);
    return result_.best.top <= goal || (!limits_.minimise && limits_.goal < result_.lower_bound);
  }
  bool stopped() const { return limits_.interrupt.out_of_time(); }

  void report() const {
    if (progress_) progress_(result_);
  }

  void offer(Layout layout, std::string_view name, bool loose) {
    if (layout.top >= result_.best.top) return;
    result_.best = std::move(layout);
    result_.strategy = name;
    loose_wins_ = loose;
    report();
  }

  void greedy(Strategy strategy) {
    for (const Model* model : {&model_, loose_}) {
      if (!model || done() || (stopped() && result_.best.top != kNowhere)) return;
      offer(run_strategy(*model, strategy, limits_.seed), strategy_name(strategy), model == loose_);
      result_.work += strategy == Strategy::kHillClimb ? 500 * round_ : round_;
    }
  }

  void campaign(std::uint64_t work) {
    if (done() || stopped() || result_.work >= limits_.work) return;
    CampaignLimits limits{limits_.goal,
                          limits_.minimise,
                          std::min(work, limits_.work - result_.work),
                          limits_.threads,
                          limits_.seed + campaigns_++,
                          limits_.interrupt};
    // A guide made without in-place reuse says little about the items joined by it.
    const Layout start =
        loose_wins_ ? Layout{std::vector<std::uint64_t>(model_.items.size(), 0), result_.best.top} : result_.best;
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
    take(run_campaign(model_, start, result_.lower_bound, limits, [&](const CampaignResult& found) {
      take(found);
      report();
    }));
  }

  const Model& model_;
  const Model* loose_;
  const LaneLimits& limits_;
  const LaneProgress& progress_;
  LaneResult result_;
  std::uint64_t round_ = 0;
  std::uint64_t campaigns_ = 0;
  bool loose_wins_ = false;
};

}  // namespace

LaneAnswer plan_lane(const Model& model, const Model* loose, const LaneLimits& limits, const LaneProgress& progress) {
  return Lane(model, loose, limits, progress).run();
}

}  // namespace berth::planner
