// A plan that follows its problem: valid after every change, near the bound, and otherwise left alone.
#include "berth/plan/incremental_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "plan/placement/arrangement.h"
#include "plan/placement/live_load.h"
#include "support/plan_families.h"
#include "support/plan_problems.h"

namespace berth {
namespace {

using namespace internal;
using Change = IncrementalPlan::Change;
using test::random_problem;

IncrementalPlan follow(const PlanProblem& problem, std::uint64_t work = 500) {
  return IncrementalPlan::make(problem, plan(problem, {.work_limit = work, .threads = 1}).value()).value();
}

std::vector<std::uint64_t> offsets_of(const IncrementalPlan& it) {
  std::vector<std::uint64_t> offsets;
  for (std::uint32_t i = 0; i < it.nodes(); ++i) offsets.push_back(it.offset(i));
  return offsets;
}

TEST(IncrementalPlan, IsValidAfterEveryChangeAndSaysWhatMoved) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    PlanProblem problem = random_problem(1 + random() % 80, seed, 60);
    if (random() % 2 == 0) problem.alignment = 16;
    for (Lifetime& it : problem.lifetimes) {
      if (random() % 15 == 0) it.pinned = true;
      if (random() % 15 == 0) it.bytes = 0;
      if (random() % 8 == 0) it.alignment = 64;
    }
    IncrementalPlan follows = follow(problem), twin = follow(problem);
    for (int round = 0; round < 6; ++round) {
      std::vector<Change> changes;
      std::size_t nodes = follows.nodes();
      for (std::size_t i = 0; i < 1 + random() % 5; ++i) {
        const auto node = static_cast<std::uint32_t>(random() % (nodes + 1));
        if (node == nodes) ++nodes;
        const auto first = static_cast<std::int64_t>(random() % 80) - 10;
        Lifetime it{.bytes = random() % 4 == 0 ? 0 : random() % 300,
                    .first = first,
                    .last = first + 1 + static_cast<std::int64_t>(random() % 20)};
        it.alignment = std::uint64_t{1} << random() % 6;
        it.pinned = random() % 20 == 0;
        changes.push_back({node, it});
      }
      std::vector<std::uint64_t> before = offsets_of(follows);
      const PlanProblem old = follows.problem();
      const IncrementalPlan::Outcome outcome = follows.change(changes).value();
      const MemoryPlan made = follows.memory_plan();
      const Violation violation = validate(follows.problem(), made);
      if (violation) RC_FAIL(describe(violation, follows.problem(), made));
      RC_ASSERT(outcome.size == made.size);
      RC_ASSERT(std::is_sorted(outcome.moved.begin(), outcome.moved.end()));
      for (std::uint32_t i = 0; i < follows.nodes(); ++i) {
        if (follows.problem().lifetimes[i].bytes == 0) continue;
        const bool was = i < before.size() && old.lifetimes[i].bytes > 0;
        const bool other = !was || before[i] != follows.offset(i);
        RC_ASSERT(other == std::binary_search(outcome.moved.begin(), outcome.moved.end(), i));
      }
      RC_ASSERT(twin.change(changes).value().size == outcome.size);
      RC_ASSERT(offsets_of(twin) == offsets_of(follows));
    }
    RC_ASSERT(follows.lower_bound() <= plan(follows.problem(), {.work_limit = 1000, .threads = 1}).value().size);
  }));
}

TEST(IncrementalPlan, LeavesEverythingElseWhereItIsWhenThereIsRoom) {
  const PlanProblem problem = bench::training_step(300, 5, 1.0);
  IncrementalPlan follows = follow(problem, 100'000);
  std::vector<std::uint64_t> before = offsets_of(follows);
  const std::uint64_t size = follows.size();
  Lifetime smaller = problem.lifetimes[20];
  smaller.bytes /= 2;
  const Change changes[] = {{10, {}}, {20, smaller}};
  const IncrementalPlan::Outcome outcome = follows.change(changes).value();
  EXPECT_TRUE(outcome.moved.empty());
  EXPECT_FALSE(outcome.planned_again);
  EXPECT_LE(outcome.size, size);
  before[10] = follows.offset(10);
  EXPECT_EQ(offsets_of(follows), before);
}

TEST(IncrementalPlan, StaysNearAFullPlanThroughManyChanges) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    IncrementalPlan follows = follow(bench::branches(200, seed), 20'000);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 150; ++round) {
      const std::vector<Lifetime>& all = follows.problem().lifetimes;
      const auto gone = static_cast<std::uint32_t>(random() % all.size());
      const Lifetime when = all[random() % all.size()];
      const Lifetime fresh{
          .bytes = 256 * (1 + random() % 4000), .first = when.first, .last = std::max(when.first + 1, when.last)};
      const Change changes[] = {{gone, {}}, {static_cast<std::uint32_t>(all.size()), fresh}};
      ASSERT_TRUE(follows.change(changes));
    }
    const MemoryPlan made = follows.memory_plan();
    EXPECT_FALSE(validate(follows.problem(), made));
    const MemoryPlan full = plan(follows.problem(), {.work_limit = 20'000}).value();
    EXPECT_LE(static_cast<double>(made.size), 1.01 * static_cast<double>(full.size)) << "seed " << seed;
  }
}

TEST(IncrementalPlan, ComesDownWhenWhatWasHighIsGone) {
  PlanProblem problem;
  for (std::int64_t i = 0; i < 40; ++i) problem.lifetimes.push_back({.bytes = 100, .first = i, .last = i + 4});
  problem.lifetimes.push_back({.bytes = 100'000, .first = 0, .last = 50});
  IncrementalPlan follows = follow(problem);
  EXPECT_EQ(follows.size(), 100'400u);
  const Change gone[] = {{40, {}}};
  const IncrementalPlan::Outcome outcome = follows.change(gone).value();
  EXPECT_EQ(outcome.size, 400u);
  EXPECT_FALSE(validate(follows.problem(), follows.memory_plan()));
}

TEST(IncrementalPlan, KeepsTheLaneOfItsNodesAndBeginsWithNone) {
  IncrementalPlan follows = IncrementalPlan::make({}, plan(PlanProblem{}).value()).value();
  const Change first[] = {{0, {.bytes = 8, .first = 0, .last = 2, .lane = 3}},
                          {1, {.bytes = 8, .first = 0, .last = 2, .lane = 3}}};
  EXPECT_EQ(follows.change(first).value().size, 16u);
  const Change gone[] = {{0, {}}};
  EXPECT_EQ(follows.change(gone).value().size, 8u);
  EXPECT_FALSE(validate(follows.problem(), follows.memory_plan()));
  const Change other[] = {{2, {.bytes = 8, .first = 0, .last = 2}}};
  EXPECT_EQ(follows.change(other).error().code(), Code::kUnsupported);
  const Change all[] = {{1, {}}};
  EXPECT_EQ(follows.change(all).value().size, 0u);
  EXPECT_FALSE(validate(follows.problem(), follows.memory_plan()));
}

TEST(IncrementalPlan, RefusesMorePaddingThanOffsetsCanHold) {
  PlanProblem problem;
  for (std::int64_t i = 0; i < 1022; ++i) problem.lifetimes.push_back({.bytes = 16, .first = i, .last = i + 1});
  IncrementalPlan follows = follow(problem);
  const Lifetime wide{.bytes = 16, .first = 0, .last = 1, .alignment = std::uint64_t{1} << 50};
  const Change last_that_fits[] = {{1022, wide}};
  EXPECT_TRUE(follows.change(last_that_fits).has_value()) << "2^60 bytes for 1023 nodes and one more";
  const Change one_more[] = {{1023, wide}};
  EXPECT_EQ(follows.change(one_more).error().code(), Code::kInvalidArgument);
}

TEST(IncrementalPlan, RefusesWhatItCannotFollowAndChangesNothing) {
  const PlanProblem problem = random_problem(20, 3, 60);
  IncrementalPlan follows = follow(problem);
  const auto refuses = [&](std::uint32_t node, const Lifetime& lifetime, Code code) {
    const Change changes[] = {{3, {}}, {node, lifetime}};
    EXPECT_EQ(follows.change(changes).error().code(), code);
  };
  refuses(21, {.bytes = 1, .first = 0, .last = 1}, Code::kInvalidArgument);
  refuses(4, {.bytes = 1, .first = 1, .last = 1}, Code::kInvalidArgument);
  refuses(4, {.bytes = 1, .first = 0, .last = 1, .alignment = 3}, Code::kInvalidArgument);
  refuses(4, {.bytes = std::numeric_limits<std::uint64_t>::max(), .first = 0, .last = 1}, Code::kInvalidArgument);
  refuses(4, {.bytes = 1, .first = 0, .last = 1, .offset = 64}, Code::kUnsupported);
  refuses(4, {.bytes = 1, .first = 0, .last = 1, .lane = 5}, Code::kUnsupported);
  EXPECT_EQ(fingerprint(follows.problem()), fingerprint(problem));
  PlanProblem banks = problem;
  banks.banks = {{"near", 0}};
  EXPECT_EQ(IncrementalPlan::make(banks, plan(banks).value()).error().code(), Code::kUnsupported);
  EXPECT_EQ(IncrementalPlan::make(random_problem(20, 4, 60), follows.memory_plan()).error().code(),
            Code::kInvalidArgument);
}

TEST(LiveLoad, HasThePeakOfWhatIsThere) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::int64_t> levels;
    for (std::size_t i = 0; i < random() % 40; ++i) levels.push_back(static_cast<std::int64_t>(random() % 100));
    planner::LiveLoad load(levels);
    std::vector<std::pair<LevelRange, std::uint64_t>> there;
    for (int step = 0; step < 60; ++step) {
      if (!there.empty() && random() % 3 == 0) {
        std::swap(there[random() % there.size()], there.back());
        load.remove(there.back().first, there.back().second);
        there.pop_back();
      } else {
        const auto first = static_cast<std::int64_t>(random() % 120) - 10;
        there.push_back({{first, first + 1 + static_cast<std::int64_t>(random() % 30)}, random() % 1000});
        load.add(there.back().first, there.back().second);
      }
      std::map<std::int64_t, std::int64_t> change;
      for (const auto& [range, bytes] : there) {
        change[range.first] += static_cast<std::int64_t>(bytes);
        change[range.last] -= static_cast<std::int64_t>(bytes);
      }
      std::int64_t now = 0, peak = 0;
      for (const auto& [level, by] : change) peak = std::max(peak, now += by);
      RC_ASSERT(load.peak() == static_cast<std::uint64_t>(peak));
    }
  }));
}

}  // namespace
}  // namespace berth
