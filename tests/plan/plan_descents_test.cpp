// Descents of the exact search that look ahead, and the two searches of a pursuit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "plan/placement/bounds.h"
#include "plan/placement/descents.h"
#include "plan/placement/hot_core.h"
#include "plan/placement/placer.h"
#include "plan/placement/pursuit.h"
#include "plan/placement/search_input.h"
#include "plan/placement/strategies.h"
#include "support/plan_families.h"
#include "support/plan_instances.h"
#include "support/plan_problems.h"

namespace berth {
namespace {

using namespace internal;
using test::random_problem;

planner::Model model_of(const PlanProblem& problem) {
  return planner::build_models(problem, true).value()[0];
}

// No two items that are alive together overlap, and the top is where the highest ends. For items of one part.
void expect_layout(const planner::Model& model, const planner::Layout& layout) {
  ASSERT_EQ(layout.offsets.size(), model.items.size());
  EXPECT_EQ(layout.top, planner::top_of(model, layout.offsets));
  std::vector<std::uint32_t> order(model.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return layout.offsets[a] < layout.offsets[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const planner::Item& below = model.items[order[i]];
    const std::uint64_t end = layout.offsets[order[i]] + below.height;
    for (std::size_t j = i + 1; j < order.size() && layout.offsets[order[j]] < end; ++j) {
      const planner::Item& above = model.items[order[j]];
      ASSERT_TRUE(above.first >= below.last || below.first >= above.last) << order[i] << " and " << order[j];
    }
  }
}

// Full at every level, so that some of them have no packing at their load.
TEST(LookAhead, ChangesTheOrderOfTheSearchAndNotItsAnswer) {
  std::size_t found = 0, impossible = 0;
  std::uint64_t nodes = 0, looking = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const planner::Model model = model_of(bench::full_load_problem(24, 4, 16, seed * 31 + 4));
    const auto scaled = planner::scale_model<std::int32_t>(model, {1, 1});
    planner::Search<std::int32_t> search(scaled->input);
    const std::vector<double> keys(model.items.size(), 0.0);
    const auto capacity = static_cast<std::int32_t>(planner::load_bound(model));
    planner::SearchStyle style{.section = planner::SectionRule::kLeastSlack, .node_limit = 20'000};
    const planner::SearchOutcome plain = search.run(capacity, style, keys);
    EXPECT_EQ(search.tried(), 0u);
    nodes += search.nodes();
    style.look_ahead = 8;
    const planner::SearchOutcome ahead = search.run(capacity, style, keys);
    EXPECT_GT(search.tried(), 0u);
    looking += search.nodes();
    if (ahead == planner::SearchOutcome::kFound) {
      planner::Layout layout{std::vector<std::uint64_t>(model.items.size()), 0};
      for (std::size_t i = 0; i < scaled->free.size(); ++i) {
        layout.offsets[scaled->free[i]] = static_cast<std::uint64_t>(search.offsets()[i]);
      }
      layout.top = planner::top_of(model, layout.offsets);
      EXPECT_LE(layout.top, planner::load_bound(model));
      expect_layout(model, layout);
    }
    if (plain == planner::SearchOutcome::kLimit || ahead == planner::SearchOutcome::kLimit) continue;
    EXPECT_EQ(ahead, plain);
    ++(plain == planner::SearchOutcome::kFound ? found : impossible);
  }
  EXPECT_GT(found, 5u);
  EXPECT_GT(impossible, 2u);
  EXPECT_LT(looking, nodes);  // what wastes least is mostly right
}

// One huge node with hundreds of small ones beside it.
TEST(Descents, LowerWhatTheGreedyRulesLeaveWhateverTheCrew) {
  const planner::Model model = model_of(bench::one_huge(2000, 3));
  const planner::Layout start =
      planner::place_in_order(model, planner::order_by_size_and_length(model), planner::Fit::kFirst);
  planner::ImprovementLimits limits;
  limits.goal = planner::load_bound(model);
  limits.work = 60'000;
  ASSERT_GT(start.top, limits.goal);
  const auto run = [&](unsigned threads) {
    planner::Crew crew(threads);
    return planner::improve_by_descents(model, start, limits, crew);
  };
  const planner::Improvement one = run(1), three = run(3);
  EXPECT_LT(one.best.top, start.top);
  EXPECT_GE(one.best.top, limits.goal);
  EXPECT_GT(one.work, 0u);
  expect_layout(model, one.best);
  EXPECT_EQ(one.best.offsets, three.best.offsets);
  EXPECT_EQ(one.work, three.work);
}

TEST(Descents, LeaveFixedItemsToOthers) {
  PlanProblem problem = random_problem(50, 5, 20);
  problem.lifetimes[0].offset = 64;
  const planner::Model model = model_of(problem);
  const planner::Layout start = planner::place_in_order(model, planner::order_by_size(model), planner::Fit::kFirst);
  planner::Crew crew(1);
  planner::ImprovementLimits limits;
  limits.work = 10'000;
  const planner::Improvement found = planner::improve_by_descents(model, start, limits, crew);
  EXPECT_EQ(found.best.offsets, start.offsets);
  EXPECT_EQ(found.work, 0u);
}

TEST(Descents, PackACoreThatTheRestGoesAround) {
  const planner::Model model = model_of(bench::one_huge(6000, 4));
  const planner::Layout known =
      planner::place_in_order(model, planner::order_by_size_and_length(model), planner::Fit::kFirst);
  planner::Crew crew(1);
  planner::ImprovementLimits limits;
  limits.goal = planner::load_bound(model);
  limits.work = 100'000;
  const auto around = [&](std::size_t fewest) {
    return planner::place_around_core(model, {0.2, 0}, planner::CoreSearch::kDescents, fewest, known, limits, crew);
  };
  const planner::Improvement found = around(100);
  EXPECT_LT(found.best.top, known.top);
  expect_layout(model, found.best);
  EXPECT_EQ(around(5999).best.top, planner::kNowhere);  // the core is smaller than that
}

// Turns of both searches on one problem after the other. What the conflict search finds must reach the best layout, its
// work must be counted, and the number of threads must not matter.
TEST(Pursuit, TakesWhatTheConflictSearchFinds) {
  std::size_t by_conflicts = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const planner::Model model = model_of(bench::grid_tiling(150, 0.05, seed));
    const planner::Layout start = planner::online_best_fit(model);
    std::vector<std::uint32_t> all(model.items.size());
    std::iota(all.begin(), all.end(), 0u);
    const planner::Pursuit::Limits limits{planner::load_bound(model), true, 3000, 5, {}};
    planner::Pursuit alone(planner::portion_of(model, all), start, true);
    const std::uint64_t exact = alone.search(limits, 1, [] {});
    planner::Pursuit both(planner::portion_of(model, all), start, true),
        pair(planner::portion_of(model, all), start, true);
    planner::Crew one(1), two(2);
    std::size_t told = 0;
    std::uint64_t before = both.best().top, work = 0;
    for (int turn = 0; turn < 2; ++turn) {
      const std::uint64_t spent = both.search_both(limits, one, [&] { ++told; });
      work += spent;
      ASSERT_LE(both.best().top, before);
      EXPECT_TRUE(both.best().top == before || told > 0);
      before = both.best().top;
      EXPECT_TRUE(turn > 0 || both.best().top <= limits.goal || spent > exact + limits.work / 2)
          << spent << " and " << exact;
      EXPECT_EQ(pair.search_both(limits, two, [] {}), spent);
      EXPECT_EQ(pair.best().offsets, both.best().offsets);
      EXPECT_EQ(pair.strategy(), both.strategy());
    }
    EXPECT_EQ(both.work(), work);
    expect_layout(both.portion().model, both.best());
    by_conflicts += both.strategy() == "conflict_search" ? 1 : 0;
  }
  EXPECT_GE(by_conflicts, 2u);
}

}  // namespace
}  // namespace berth
