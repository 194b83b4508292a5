// The parts of the planner's searches: inner loops, portions of a model, the hot core, and the families they are
// measured with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "berth/plan/plan.h"
#include "plan/placement/bounds.h"
#include "plan/placement/hot_core.h"
#include "plan/placement/portion.h"
#include "plan/placement/search_kernels.h"
#include "plan/placement/strategies.h"
#include "support/plan_families.h"
#include "support/plan_problems.h"
#include "support/seed.h"

namespace berth {
namespace {

using namespace internal;
using test::expect_disjoint;
using test::random_problem;

TEST(SearchKernels, GiveWhatThePortableFormsGive) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const std::size_t count = 1 + random() % 70, sections = 1 + random() % 40;
    std::vector<std::int32_t> first, last, low, floor;
    for (std::size_t s = 0; s < sections; ++s) floor.push_back(static_cast<std::int32_t>(random() % 4));
    for (std::size_t i = 0; i < count + planner::kPadding; ++i) {
      first.push_back(static_cast<std::int32_t>(random() % sections));
      last.push_back(first.back() + 1 +
                     static_cast<std::int32_t>(random() % (sections - static_cast<std::size_t>(first.back()))));
      low.push_back(static_cast<std::int32_t>(random() % 6));
    }
    const auto begin = static_cast<std::uint32_t>(random() % count);
    const auto end = begin + static_cast<std::uint32_t>(random() % (count - begin + 1));
    const auto section = static_cast<std::int32_t>(random() % sections);
    const auto level = static_cast<std::int32_t>(random() % 7);
    std::uint32_t which = 999, expected_which = 999;
    EXPECT_EQ(planner::least_low(last.data(), low.data(), begin, end, section, 5, which),
              planner::portable::least_low(last.data(), low.data(), begin, end, section, 5, expected_which));
    EXPECT_EQ(which, expected_which) << "seed " << seed;
    std::vector<std::uint32_t> found(count + planner::kPadding), expected(found);
    found.resize(planner::select_below(last.data(), low.data(), begin, end, section, level, found.data()));
    expected.resize(
        planner::portable::select_below(last.data(), low.data(), begin, end, section, level, expected.data()));
    EXPECT_EQ(found, expected) << "seed " << seed;
    found.resize(count + planner::kPadding);
    expected.resize(found.size());
    found.resize(
        planner::select_standing(first.data(), last.data(), low.data(), floor.data(), begin, end, found.data()));
    expected.resize(planner::portable::select_standing(first.data(), last.data(), low.data(), floor.data(), begin, end,
                                                       expected.data()));
    EXPECT_EQ(found, expected) << "seed " << seed;
  }
}

TEST(SearchKernels, FindTheLowestPlaceWithAndWithoutVectors) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 2000; ++round) {
    const auto count = static_cast<std::uint32_t>(random() % 40);
    std::vector<std::int32_t> first(count + planner::kPadding), last(first);
    std::vector<std::int64_t> low(first.size()), high(low);
    std::int64_t at = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      first[i] = static_cast<std::int32_t>(random() % 10);
      last[i] = first[i] + 1 + static_cast<std::int32_t>(random() % 5);
      low[i] = at += static_cast<std::int64_t>(random() % 4);
      high[i] = at + 1 + static_cast<std::int64_t>(random() % 9);
    }
    const auto from = static_cast<std::int32_t>(random() % 12),
               until = from + 1 + static_cast<std::int32_t>(random() % 5);
    const auto height = 1 + static_cast<std::int64_t>(random() % 9);
    const std::int64_t mask = (std::int64_t{1} << (random() % 4)) - 1;
    const planner::LowestPlace found =
        planner::lowest_place(first.data(), last.data(), low.data(), high.data(), count, from, until, height, mask);
    const planner::LowestPlace expected = planner::portable::lowest_place(
        first.data(), last.data(), low.data(), high.data(), count, from, until, height, mask);
    ASSERT_EQ(found.at, expected.at) << "round " << round;
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool together = first[i] < until && from < last[i];
      ASSERT_FALSE(together && low[i] < found.at + height && found.at < high[i]) << "round " << round;
    }
  }
}

TEST(PlanPortions, ShareNoTimeAndTogetherAreTheWhole) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const PlanProblem problem = random_problem(60, seed, 400);
    const planner::Model model = planner::build_models(problem, true).value()[0];
    const std::vector<planner::Portion> portions = planner::split_in_time(model);
    EXPECT_GT(portions.size(), 1u);
    std::vector<std::uint32_t> all;
    std::int32_t reach = 0;
    std::uint64_t bound = 0;
    for (const planner::Portion& portion : portions) {
      std::int32_t first = model.sections, last = 0;
      for (const std::uint32_t item : portion.items) {
        first = std::min(first, model.items[item].first);
        last = std::max(last, model.items[item].last);
      }
      EXPECT_GE(first, reach);
      reach = last;
      bound = std::max(bound, planner::load_bound(portion.model));
      all.insert(all.end(), portion.items.begin(), portion.items.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::uint32_t> expected(model.items.size());
    std::iota(expected.begin(), expected.end(), 0u);
    EXPECT_EQ(all, expected);
    EXPECT_EQ(bound, planner::load_bound(model));
  }
}

// A failure in one portion must not undo what was found in the others: many copies of a hard problem, one after the
// other in time, take about as many times the work of one.
TEST(PlanPortions, ManyCopiesInARowTakeTheWorkOfEachAndNoMore) {
  const PlanProblem one = bench::guillotine_problem(90, 0.0, 11);
  const std::uint64_t alone = plan(one, {.work_limit = 300'000, .threads = 1}).value().work;
  PlanProblem row;
  row.capacity = one.capacity;
  constexpr std::int64_t kCopies = 8;
  for (std::int64_t copy = 0; copy < kCopies; ++copy) {
    for (Lifetime it : one.lifetimes) {
      it.first += copy * 20'000;
      it.last += copy * 20'000;
      row.lifetimes.push_back(it);
    }
  }
  const MemoryPlan made = plan(row, {.work_limit = 8'000'000, .threads = 1}).value();
  expect_disjoint(row, made);
  EXPECT_LE(made.work, 3 * kCopies * (alone + 2000));
}

TEST(HotCore, PlacesEverythingAroundThePackedCore) {
  const PlanProblem problem = bench::training_step(6000, 4);
  const planner::Model model = planner::build_models(problem, true).value()[0];
  planner::Crew crew(1);
  planner::ImprovementLimits limits;
  limits.goal = planner::load_bound(model);
  limits.work = 20'000;
  const planner::Improvement found =
      planner::place_around_core(model, {0.2, 1e-5}, planner::CoreSearch::kRestarts, 0, {}, limits, crew);
  ASSERT_NE(found.best.top, planner::kNowhere);
  EXPECT_EQ(found.best.top, planner::top_of(model, found.best.offsets));
  EXPECT_GE(found.best.top, limits.goal);
  // No two that are alive together overlap.
  std::vector<std::uint32_t> order(model.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return found.best.offsets[a] < found.best.offsets[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const planner::Item& below = model.items[order[i]];
    const std::uint64_t end = found.best.offsets[order[i]] + below.height;
    for (std::size_t j = i + 1; j < order.size() && found.best.offsets[order[j]] < end; ++j) {
      const planner::Item& above = model.items[order[j]];
      ASSERT_TRUE(above.first >= below.last || below.first >= above.last) << order[i] << " and " << order[j];
    }
  }
}

TEST(HotCore, HasNothingToSayWhereNothingIsLargeEnough) {
  const PlanProblem problem = random_problem(200, 3, 60);
  const planner::Model model = planner::build_models(problem, true).value()[0];
  planner::Crew crew(1);
  for (const auto search : {planner::CoreSearch::kRestarts, planner::CoreSearch::kDescents}) {
    const planner::ImprovementLimits limits{.work = 1000, .interrupt = {}};
    EXPECT_EQ(planner::place_around_core(model, {0.2, 2.0}, search, 0, {}, limits, crew).best.top, planner::kNowhere);
  }
}

TEST(PlanFamilies, TilingsAreFullAtEveryLevelWhereNothingIsDropped) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const PlanProblem& problem : {bench::cut_tiling(100, 0.0, 0.0, seed), bench::cut_tiling(100, 0.0, 0.7, seed),
                                       bench::grid_tiling(100, 0.0, seed)}) {
      std::uint64_t area = 0;
      std::int64_t end = 0;
      for (const Lifetime& it : problem.lifetimes) {
        area += it.bytes * static_cast<std::uint64_t>(it.last - it.first);
        end = std::max(end, it.last);
      }
      EXPECT_EQ(area, *problem.capacity * static_cast<std::uint64_t>(end)) << "seed " << seed;
      EXPECT_EQ(test::live_load(problem), *problem.capacity) << "seed " << seed;
    }
  }
}

TEST(PlanFamilies, AScaleChangesTheSizesOfATrainingStepAndNothingElse) {
  const PlanProblem one = bench::training_step(300, 9, 1.0), other = bench::training_step(300, 9, 2.0);
  ASSERT_EQ(one.lifetimes.size(), other.lifetimes.size());
  std::size_t larger = 0;
  for (std::size_t i = 0; i < one.lifetimes.size(); ++i) {
    EXPECT_EQ(one.lifetimes[i].first, other.lifetimes[i].first);
    EXPECT_EQ(one.lifetimes[i].last, other.lifetimes[i].last);
    larger += other.lifetimes[i].bytes > one.lifetimes[i].bytes ? 1 : 0;
  }
  EXPECT_GT(larger, one.lifetimes.size() / 2);
}

}  // namespace
}  // namespace berth
