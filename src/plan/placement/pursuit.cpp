#include "plan/placement/pursuit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/placement/bounds.h"

namespace berth::internal::planner {

Pursuit::Pursuit(Portion portion, const Layout& whole, bool usable)
    : portion_(std::move(portion)), suits_conflicts_(ConflictSearch::suits(portion_.model)) {
  best_ = usable ? portion_.layout_of(whole) : Layout{std::vector<std::uint64_t>(portion_.items.size(), 0), whole.top};
  start_ = best_;
  lower_bound_ = load_ = load_bound(portion_.model);
}

void Pursuit::offer(const Layout& whole) {
  Layout layout = portion_.layout_of(whole);
  if (layout.top < start_.top) start_ = layout;
  if (layout.top >= best_.top) return;
  best_ = std::move(layout);
  strategy_.clear();
}

std::uint64_t Pursuit::run(const Limits& limits, unsigned threads, const Layout* hint,
                           const std::function<void()>& progress) {
  const CampaignLimits campaign{limits.goal, limits.minimise,  limits.work, threads,
                                limits.seed, limits.interrupt, hint};
  const auto take = [&](const CampaignResult& found) {
    lower_bound_ = std::max(lower_bound_, found.lower_bound);
    if (found.strategy.empty() || found.best.top >= best_.top) return;
    best_ = found.best;
    strategy_ = found.strategy;
  };
  const CampaignResult result =
      run_campaign(portion_.model, best_, lower_bound_, campaign, memory_, [&](const CampaignResult& found) {
        take(found);
        progress();
      });
  take(result);
  return result.work;
}

std::uint64_t Pursuit::search(const Limits& limits, unsigned threads, const std::function<void()>& progress) {
  const std::uint64_t spent = run(limits, threads, nullptr, progress);
  work_ += spent;
  return spent;
}

std::uint64_t Pursuit::search_both(const Limits& limits, Crew& crew, const std::function<void()>& progress) {
  if (!suits_conflicts_) return search(limits, crew.size(), progress);
  if (!conflicts_) conflicts_.emplace(portion_.model, start_, limits.seed);
  // They share what they found only between turns, so that the number of threads does not change the plan. The conflict
  // search keeps to its own way down from the greedy layout, because it learns on the way; the exact search is guided
  // by where it is.
  const Layout hint = conflicts_->nearest();
  std::uint64_t spent = 0;
  crew.run([&](unsigned who) {
    if (who == 0) spent = run(limits, std::max(1u, crew.size() - 1), &hint, progress);
    if (who == 1 || crew.size() == 1) {
      conflicts_->improve({std::max(limits.goal, load_), limits.work, limits.interrupt});
    }
  });
  spent += conflicts_->work();
  work_ += spent;
  if (conflicts_->best().top < best_.top) {
    best_ = conflicts_->best();
    strategy_ = "conflict_search";
    progress();
  }
  return spent;
}

}  // namespace berth::internal::planner
