// What the planner's searches promise: how small a plan gets, what is proven, and that threads change nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "berth/plan/plan.h"
#include "plan/placement/bounds.h"
#include "plan/placement/campaign.h"
#include "plan/placement/conflicts.h"
#include "plan/placement/ejection.h"
#include "plan/placement/peaks.h"
#include "plan/placement/placer.h"
#include "plan/placement/portion.h"
#include "plan/placement/pursuit.h"
#include "plan/placement/strategies.h"
#include "support/plan_instances.h"
#include "support/plan_problems.h"
#include "support/seed.h"

namespace berth {

using namespace internal;

namespace {

using test::expect_disjoint;
using test::random_problem;

// The smallest size by trying every order of first fit from below: exact for a handful of nodes.
std::uint64_t smallest_by_force(const PlanProblem& problem) {
  std::vector<std::size_t> order(problem.lifetimes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::uint64_t best = ~std::uint64_t{0};
  do {
    std::vector<std::uint64_t> offset(order.size(), 0);
    std::uint64_t top = 0;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const Lifetime& it = problem.lifetimes[order[k]];
      for (std::size_t j = 0; j < k; ++j) {  // skyline: above all earlier ones that it meets
        const Lifetime& other = problem.lifetimes[order[j]];
        if (it.first < other.last && other.first < it.last) {
          offset[order[k]] = std::max(offset[order[k]], offset[order[j]] + other.bytes);
        }
      }
      top = std::max(top, offset[order[k]] + it.bytes);
    }
    best = std::min(best, top);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(PlanSearch, FindsTheSmallestSizeAndProvesItOnSmallProblems) {
  for (const std::uint64_t seed : test::seeds(60)) {
    std::mt19937_64 random(seed);
    PlanProblem problem;
    for (int i = 0; i < 7; ++i) {
      const auto first = static_cast<std::int64_t>(random() % 6);
      problem.lifetimes.push_back(
          {.bytes = 1 + random() % 9, .first = first, .last = first + 1 + static_cast<std::int64_t>(random() % 4)});
    }
    const MemoryPlan made = plan(problem).value();
    expect_disjoint(problem, made);
    EXPECT_EQ(made.size, smallest_by_force(problem)) << "seed " << seed;
    EXPECT_TRUE(made.optimal) << "seed " << seed;
    // What is proven impossible is said to be.
    problem.capacity = made.size - 1;
    const auto below = plan(problem);
    ASSERT_FALSE(below);
    EXPECT_EQ(below.error().code(), Code::kInfeasible) << "seed " << seed;
  }
}

TEST(PlanSearch, ProvesBoundsAboveTheLiveLoad) {
  int above_load = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    PlanProblem problem = bench::full_load_problem(12, 4, 14, seed);
    ASSERT_EQ(plan_lower_bound(problem).value(), 12u);
    const MemoryPlan made = plan(problem).value();
    expect_disjoint(problem, made);
    EXPECT_TRUE(made.optimal) << "seed " << seed;
    if (made.lower_bound == 12) continue;
    ++above_load;
    // The search proves it from the capacity too, where the load alone would promise a plan.
    problem.capacity = 12;
    const auto at_load = plan(problem);
    ASSERT_FALSE(at_load);
    EXPECT_EQ(at_load.error().code(), Code::kInfeasible);
  }
  EXPECT_GT(above_load, 0);
}

TEST(PlanSearch, SaysWhenTheLimitEndedTheSearch) {
  PlanProblem problem = bench::guillotine_problem(400, 0.0, 3);
  const auto made = plan(problem, {.work_limit = 50, .threads = 1});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kNotFound);
}

TEST(PlanSearch, SolvesWhatIsFeasibleByConstruction) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const PlanProblem problem = bench::guillotine_problem(60 + 20 * seed, 0.02, seed);
    expect_disjoint(problem, plan(problem).value());
  }
}

TEST(PlanSearch, ReachesTheBoundOnDenselyConnectedBlocks) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const PlanProblem problem = bench::densenet_problem(seed);
    const MemoryPlan made = plan(problem).value();
    expect_disjoint(problem, made);
    EXPECT_TRUE(made.optimal);
  }
}

TEST(PlanSearch, IsTheSameOnAnyNumberOfThreads) {
  const PlanProblem hard = bench::guillotine_problem(220, 0.03, 8);
  PlanProblem problem{.lifetimes = hard.lifetimes};
  const auto run = [&](unsigned threads, std::uint64_t seed) {
    return plan(problem, {.work_limit = 30'000, .threads = threads, .seed = seed}).value();
  };
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const MemoryPlan one = run(1, seed);
    expect_disjoint(problem, one);
    for (const unsigned threads : {2u, 4u}) {
      const MemoryPlan other = run(threads, seed);
      EXPECT_EQ(one.slots, other.slots) << threads << " threads, seed " << seed;
      EXPECT_EQ(one.size, other.size);
      EXPECT_EQ(one.work, other.work);
      EXPECT_EQ(one.strategy, other.strategy);
    }
  }
}

TEST(PlanSearch, IsTheSameOnAnyNumberOfThreadsWhenLarge) {
  const PlanProblem problem = bench::heavy_tailed_problem(6000, 5);
  const MemoryPlan one = plan(problem, {.work_limit = 30'000, .threads = 1}).value();
  const MemoryPlan four = plan(problem, {.work_limit = 30'000, .threads = 4}).value();
  EXPECT_EQ(one.slots, four.slots);
  EXPECT_EQ(one.work, four.work);
}

// Every pair by itself: slow, and simple enough to trust.
void expect_no_overlap(const PlanProblem& problem, const planner::Layout& layout) {
  for (std::size_t a = 0; a < problem.lifetimes.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const Lifetime &x = problem.lifetimes[a], &y = problem.lifetimes[b];
      if (x.first >= y.last || y.first >= x.last) continue;
      const std::uint64_t p = layout.offsets[a], q = layout.offsets[b];
      ASSERT_TRUE(p + x.bytes <= q || q + y.bytes <= p) << a << " and " << b;
    }
  }
}

TEST(PlanSearch, EjectionImprovesALayoutTheSameOnAnyNumberOfThreads) {
  const PlanProblem problem = random_problem(300, 41, 60);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout start = planner::online_best_fit(models[0]);
  const auto run = [&](unsigned threads) {
    planner::Crew crew(threads);
    planner::ImprovementLimits limits;
    limits.work = 20'000;
    limits.goal = planner::load_bound(models[0]);
    std::uint64_t last = start.top;
    return planner::improve_by_ejection(models[0], start, limits, crew, [&](const planner::Improvement& now) {
      EXPECT_LT(now.best.top, last);
      last = now.best.top;
    });
  };
  const planner::Improvement one = run(1);
  EXPECT_LT(one.best.top, start.top);
  expect_no_overlap(problem, one.best);
  for (const unsigned threads : {2u, 4u}) {
    const planner::Improvement other = run(threads);
    EXPECT_EQ(one.best.offsets, other.best.offsets) << threads << " threads";
    EXPECT_EQ(one.work, other.work);
  }
}

TEST(PlanSearch, ACampaignGoesOnWhereTheLastOneEnded) {
  const PlanProblem problem = random_problem(150, 47, 60);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const std::uint64_t bound = planner::load_bound(models[0]);
  planner::CampaignLimits limits;
  limits.goal = bound;
  limits.work = 20'000;
  planner::CampaignMemory memory;
  planner::Layout best = planner::online_best_fit(models[0]);
  std::uint64_t spent = 0, restarts = 0;
  for (int turn = 0; turn < 3 && best.top > bound; ++turn) {
    const planner::CampaignResult found = planner::run_campaign(models[0], best, bound, limits, memory, {});
    EXPECT_GT(memory.restarts, restarts) << "turn " << turn;
    EXPECT_LE(found.best.top, best.top);
    EXPECT_EQ(memory.least_top, found.best.top);
    spent += found.work;
    EXPECT_EQ(memory.work, spent);
    restarts = memory.restarts;
    best = found.best;
  }
  EXPECT_GT(spent, 0u);
  EXPECT_LT(best.top, planner::online_best_fit(models[0]).top);
}

TEST(PlanSearch, LowersThePeaksOfALayoutTheSameOnAnyNumberOfThreads) {
  const PlanProblem problem = bench::exponential_problem(12'000, 9);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout start = planner::online_best_fit(models[0]);
  const auto run = [&](unsigned threads) {
    planner::Crew crew(threads);
    planner::ImprovementLimits limits;
    limits.goal = planner::load_bound(models[0]);
    limits.work = 5000;
    limits.round = 1000;
    std::uint64_t last = start.top;
    return planner::lower_peaks(models[0], start, limits, crew, [&](const planner::Improvement& now) {
      EXPECT_LT(now.best.top, last);
      last = now.best.top;
    });
  };
  const planner::Improvement one = run(1);
  EXPECT_LT(one.best.top, start.top);
  EXPECT_GE(one.work, 1000u);
  EXPECT_EQ(one.best.top, planner::top_of(models[0], one.best.offsets));
  expect_no_overlap(problem, one.best);
  const planner::Improvement three = run(3);
  EXPECT_EQ(one.best.offsets, three.best.offsets);
  EXPECT_EQ(one.work, three.work);
}

TEST(PlanSearch, LeavesWhatLivesFarFromThePeaksWhereItIs) {
  // One node at a time for a long while, each well above the ground, and then a crowd.
  constexpr std::size_t kQuiet = 4000;
  PlanProblem problem = bench::exponential_problem(500, 9);
  for (Lifetime& life : problem.lifetimes) {
    life.first += 50'000;
    life.last += 50'000;
  }
  for (std::size_t i = 0; i < kQuiet; ++i) {
    const auto level = static_cast<std::int64_t>(i);
    problem.lifetimes.push_back({.bytes = 64, .first = level, .last = level + 1});
  }
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  planner::Layout start = planner::online_best_fit(models[0]);
  for (std::size_t i = 0; i < kQuiet; ++i) start.offsets[500 + i] = 6400;
  planner::Crew crew(1);
  planner::ImprovementLimits limits;
  limits.goal = planner::load_bound(models[0]);
  limits.work = 1000;
  const planner::Improvement found = planner::lower_peaks(models[0], start, limits, crew);
  EXPECT_LT(found.best.top, start.top);
  for (std::size_t i = 0; i < kQuiet / 2; ++i) ASSERT_EQ(found.best.offsets[500 + i], 6400u) << i;
}

// What a search over conflicts makes of a problem's greedy layout, in turns of `turn` units.
planner::Layout search_conflicts(const PlanProblem& problem, std::uint64_t turn, std::uint64_t work) {
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  planner::ConflictSearch search(models[0], planner::online_best_fit(models[0]), 7);
  for (std::uint64_t spent = 0; spent < work; spent += turn) {
    search.improve({.goal = planner::load_bound(models[0]), .work = turn, .interrupt = {}});
  }
  return search.best();
}

TEST(PlanSearch, ConflictSearchLowersALayoutUntilNothingOverlapsUnderTheLid) {
  PlanProblem problem = random_problem(200, 43, 60);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const std::uint64_t before = planner::online_best_fit(models[0]).top;
  const planner::Layout found = search_conflicts(problem, 10'000, 20'000);
  EXPECT_LT(found.top, before);
  EXPECT_EQ(found.top, planner::top_of(models[0], found.offsets));
  expect_no_overlap(problem, found);
}

TEST(PlanSearch, ConflictSearchUsesTheLowestPlaceToo) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 2, .first = 0, .last = 2}, {.bytes = 2, .first = 0, .last = 2}};
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  planner::ConflictSearch search(models[0], {.offsets = {2, 4}, .top = 6}, 7);
  search.improve({.goal = 4, .work = 10'000, .interrupt = {}});
  EXPECT_EQ(search.best().top, 4u);
}

TEST(PlanSearch, ConflictSearchRoundsSizesThatHaveNoCommonUnit) {
  PlanProblem problem = random_problem(200, 43, 60);
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    problem.lifetimes[i].bytes = problem.lifetimes[i].bytes * 10'007 + i;  // far more units than it keeps apart
  }
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout found = search_conflicts(problem, 20'000, 20'000);
  EXPECT_LT(found.top, planner::online_best_fit(models[0]).top);
  EXPECT_EQ(found.top, planner::top_of(models[0], found.offsets));
}

TEST(PlanSearch, ConflictSearchLeavesItemsWithGapsAndFixedOffsetsToOthers) {
  PlanProblem problem = random_problem(30, 44, 60);
  EXPECT_TRUE(planner::ConflictSearch::suits(planner::build_models(problem, true).value()[0]));
  PlanProblem fixed = problem;
  fixed.lifetimes[0].offset = 0;
  EXPECT_FALSE(planner::ConflictSearch::suits(planner::build_models(fixed, true).value()[0]));
  PlanProblem aligned = problem;
  aligned.lifetimes[0].alignment = 64;
  EXPECT_FALSE(planner::ConflictSearch::suits(planner::build_models(aligned, true).value()[0]));
}

TEST(PlanSearch, APursuitSearchesOverConflictsBesideTheExactSearch) {
  const PlanProblem problem{.lifetimes = bench::guillotine_problem(220, 0.03, 8).lifetimes};
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout start = planner::online_best_fit(models[0]);
  std::vector<std::uint32_t> all(models[0].items.size());
  std::iota(all.begin(), all.end(), 0u);
  const planner::Pursuit::Limits limits{
      .goal = planner::load_bound(models[0]), .minimise = true, .work = 15'000, .seed = 7, .interrupt = {}};
  const auto pursue = [&] { return planner::Pursuit(planner::portion_of(models[0], all), start, true); };

  planner::ConflictSearch conflicts(models[0], start, limits.seed);
  conflicts.improve({.goal = limits.goal, .work = limits.work, .interrupt = {}});
  ASSERT_GE(conflicts.work(), limits.work) << "it does not come to an end";

  std::optional<planner::Layout> first;
  for (const unsigned threads : {1u, 2u, 3u}) {
    planner::Crew crew(threads);
    planner::Pursuit both = pursue();
    std::uint64_t last = start.top;
    bool told = false;
    const std::uint64_t spent = both.search_both(limits, crew, [&] {
      told = true;
      EXPECT_LE(both.best().top, last);
      last = both.best().top;
    });
    EXPECT_EQ(both.work(), spent);
    EXPECT_GT(spent, conflicts.work()) << "the work of both";
    EXPECT_LE(both.best().top, conflicts.best().top);
    EXPECT_LT(both.best().top, start.top);
    EXPECT_TRUE(told);
    EXPECT_EQ(last, both.best().top) << "the last progress was the best";
    EXPECT_FALSE(both.strategy().empty());
    expect_no_overlap(problem, both.best());
    if (!first) first = both.best();
    EXPECT_EQ(first->offsets, both.best().offsets) << threads << " threads";
    // A turn later goes on from there.
    both.search_both(limits, crew, [] {});
    EXPECT_LE(both.best().top, first->top);
    EXPECT_GT(both.work(), spent);
  }
}

TEST(PlanSearch, APursuitTakesWhatIsOfferedOnlyIfItIsLower) {
  const PlanProblem problem = random_problem(40, 44, 60);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout start = planner::online_best_fit(models[0]);
  std::vector<std::uint32_t> all(models[0].items.size());
  std::iota(all.begin(), all.end(), 0u);
  planner::Pursuit pursuit(planner::portion_of(models[0], all), start, true);
  planner::Layout higher = start;
  for (std::uint64_t& offset : higher.offsets) offset += 8;
  higher.top += 8;
  pursuit.offer(higher);
  EXPECT_EQ(pursuit.best().offsets, start.offsets);
  const planner::Layout found = search_conflicts(problem, 10'000, 20'000);
  ASSERT_LT(found.top, start.top);
  pursuit.offer(found);
  EXPECT_EQ(pursuit.best().offsets, found.offsets);
  EXPECT_TRUE(pursuit.strategy().empty());
  pursuit.offer(start);
  EXPECT_EQ(pursuit.best().offsets, found.offsets) << "it keeps the lowest";
}

TEST(PlanSearch, IsNeverLargerThanAnyNamedStrategy) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    PlanProblem problem = random_problem(20 + 15 * seed, seed);
    if (seed % 3 == 1) problem.alignment = 8;
    if (seed % 3 == 2) problem.lifetimes[3].gaps = {{problem.lifetimes[3].first, problem.lifetimes[3].first + 1}};
    const MemoryPlan made = plan(problem, {.work_limit = 5'000}).value();
    for (const StrategyInfo& info : strategies()) {
      const MemoryPlan alone = plan_with(info.name, problem).value();
      EXPECT_EQ(alone.strategy, info.name);
      EXPECT_LE(made.size, alone.size) << info.name << ", seed " << seed;
      if (seed % 3 != 2) expect_disjoint(problem, alone);
    }
  }
}

TEST(PlanSearch, IsNeverLargerThanAnyNamedStrategyWhenLarge) {
  const PlanProblem problem = bench::exponential_problem(5000, 3);
  const MemoryPlan made = plan(problem, {.work_limit = 5'000}).value();
  for (const StrategyInfo& info : strategies()) EXPECT_LE(made.size, plan_with(info.name, problem)->size) << info.name;
}

}  // namespace
}  // namespace berth
