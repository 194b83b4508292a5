// Planning again from a known plan: sizes that changed, nodes that came or went.
#include "berth/plan/replan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "plan/placement/squeeze.h"
#include "support/plan_families.h"
#include "support/plan_problems.h"
#include "support/support.h"

namespace berth {
namespace {

using namespace internal;
using test::expect_disjoint;
using test::random_problem;

// The plan that offsets make, as the validator wants it.
MemoryPlan plan_of(const PlanProblem& problem, const std::vector<std::uint64_t>& offsets, Replanner::Placement placed) {
  MemoryPlan made;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::uint64_t bytes = problem.lifetimes[i].bytes;
    made.slots.push_back(bytes == 0 ? Slot{} : Slot{offsets[i], bytes, 0});
  }
  if (placed.size > 0) made.blocks.push_back({placed.size, 0, problem.lifetimes.front().lane});
  made.size = placed.size;
  made.lower_bound = placed.lower_bound;
  made.optimal = made.size == made.lower_bound;
  made.fingerprint = fingerprint(problem);
  return made;
}

void set_sizes(PlanProblem& problem, const std::vector<std::uint64_t>& bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) problem.lifetimes[i].bytes = bytes[i];
}

TEST(Replanner, PlacesTheKnownSizesNoHigherThanTheKnownPlan) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const PlanProblem problem = random_problem(150, seed, 60);
    const MemoryPlan known = plan(problem, {.work_limit = 2000}).value();
    Replanner again = Replanner::make(problem, known).value();
    std::vector<std::uint64_t> bytes, offsets(problem.lifetimes.size());
    for (const Lifetime& it : problem.lifetimes) bytes.push_back(it.bytes);
    const Replanner::Placement placed = again.place(bytes, offsets).value();
    EXPECT_LE(placed.size, known.size) << "seed " << seed;
    EXPECT_FALSE(validate(problem, plan_of(problem, offsets, placed)));
  }
}

TEST(Replanner, EveryPlacementIsValidForItsSizes) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    PlanProblem problem = random_problem(1 + random() % 200, seed, 1 + static_cast<std::int64_t>(random() % 300));
    if (random() % 2 == 0) problem.alignment = std::uint64_t{1} << (random() % 9);
    for (Lifetime& it : problem.lifetimes) {
      if (random() % 8 == 0) it.alignment = std::uint64_t{1} << (random() % 9);
      if (random() % 20 == 0) it.pinned = true;
      if (random() % 20 == 0) it.bytes = 0;
    }
    const MemoryPlan known = plan(problem, {.work_limit = 500, .threads = 1}).value();
    Replanner again = Replanner::make(problem, known).value();
    for (int shape = 0; shape < 3; ++shape) {
      std::vector<std::uint64_t> bytes, offsets(problem.lifetimes.size(), 77);
      for (const Lifetime& it : problem.lifetimes) {
        bytes.push_back(random() % 15 == 0 ? 0 : (it.bytes + 1) * (1 + random() % 4) / 2);
      }
      const Replanner::Placement placed = again.place(bytes, offsets).value();
      PlanProblem changed = problem;
      set_sizes(changed, bytes);
      const MemoryPlan made = plan_of(changed, offsets, placed);
      const Violation violation = validate(changed, made);
      if (violation) RC_FAIL(describe(violation, changed, made));
      std::vector<std::uint64_t> repeated(offsets.size());
      RC_ASSERT(again.place(bytes, repeated).value().size == placed.size);
      RC_ASSERT(repeated == offsets);
    }
  }));
}

TEST(Replanner, StaysWithinOnePercentOfAFullPlanWhenAllSizesOfATrainingStepChange) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const PlanProblem problem = bench::training_step(400, seed, 1.0);
    const MemoryPlan known = plan(problem, {.work_limit = 20'000}).value();
    Replanner again = Replanner::make(problem, known).value();
    const PlanProblem changed = bench::training_step(400, seed, 1.7);
    ASSERT_EQ(changed.lifetimes.size(), problem.lifetimes.size());
    std::vector<std::uint64_t> bytes, offsets(changed.lifetimes.size());
    for (const Lifetime& it : changed.lifetimes) bytes.push_back(it.bytes);
    const Replanner::Placement placed = again.place(bytes, offsets).value();
    EXPECT_FALSE(validate(changed, plan_of(changed, offsets, placed)));
    const MemoryPlan full = plan(changed, {.work_limit = 20'000}).value();
    EXPECT_LE(static_cast<double>(placed.size), 1.01 * static_cast<double>(full.size)) << "seed " << seed;
  }
}

TEST(Replanner, IsNoWorseForWhatItLearned) {
  double before = 0, after = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const PlanProblem problem = bench::branches(200, seed);
    Replanner again = Replanner::make(problem, plan(problem, {.work_limit = 5000}).value()).value();
    Replanner wiser = Replanner::make(problem, plan(problem, {.work_limit = 5000}).value()).value();
    ASSERT_TRUE(wiser.rehearse(problem, 40, {.work_limit = 2000, .threads = 1}));
    std::mt19937_64 random(seed);
    PlanProblem changed = problem;
    std::vector<std::uint64_t> bytes, offsets(problem.lifetimes.size());
    for (const Lifetime& it : problem.lifetimes) bytes.push_back(1 + it.bytes * (75 + random() % 50) / 100);
    set_sizes(changed, bytes);
    before += static_cast<double>(again.place(bytes, offsets).value().size);
    const Replanner::Placement placed = wiser.place(bytes, offsets).value();
    after += static_cast<double>(placed.size);
    EXPECT_FALSE(validate(changed, plan_of(changed, offsets, placed)));
  }
  EXPECT_LT(after, before);
}

TEST(Replanner, FindsTheBoundOfAnotherShapeThatItHasLearned) {
  const PlanProblem problem = bench::branches(200, 2);
  Replanner again = Replanner::make(problem, plan(problem).value()).value();
  PlanProblem other = problem;
  for (std::size_t i = 0; i < other.lifetimes.size(); ++i) other.lifetimes[i].bytes *= 1 + i % 7;
  const MemoryPlan known = plan(other).value();
  ASSERT_TRUE(known.optimal);
  ASSERT_TRUE(again.learn(known));
  std::vector<std::uint64_t> bytes, offsets(other.lifetimes.size());
  for (const Lifetime& it : other.lifetimes) bytes.push_back(it.bytes);
  EXPECT_LE(again.place(bytes, offsets).value().size, known.size + known.size / 200);
  MemoryPlan short_one = known;
  short_one.slots.pop_back();
  EXPECT_EQ(again.learn(short_one).error().code(), Code::kInvalidArgument);
  other.lifetimes.pop_back();
  EXPECT_EQ(again.rehearse(other, 1, {.work_limit = 100}).error().code(), Code::kInvalidArgument);
}

TEST(Squeezer, GetsALayoutUnderALidOnlyWhereItCan) {
  // Three nodes on top of each other need only two levels: the first and the last never live together.
  const std::vector<planner::Extent> extents = {{{0, 1}, 0}, {{0, 2}, 0}, {{1, 2}, 0}};
  const std::vector<std::uint64_t> bytes = {10, 10, 10};
  planner::Squeezer squeezer(extents);
  squeezer.begin(bytes);
  std::vector<std::uint64_t> offsets = {0, 10, 20};
  std::int64_t work = 10'000;
  ASSERT_TRUE(squeezer.squeeze(offsets, 20, work));
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{0, 10, 0}));
  EXPECT_LT(work, 10'000);
  EXPECT_FALSE(squeezer.squeeze(offsets, 19, work));
  EXPECT_LE(work, 0) << "it ends when its work is done";
}

TEST(Squeezer, ThrowsOutWhatIsInTheWayAndFindsItAnotherPlace) {
  // The tall one fits under the lid only where the short one is, which can go above it.
  const std::vector<planner::Extent> extents = {{{0, 1}, 0}, {{0, 2}, 0}, {{1, 2}, 0}};
  const std::vector<std::uint64_t> bytes = {4, 12, 4};
  planner::Squeezer squeezer(extents);
  squeezer.begin(bytes);
  std::vector<std::uint64_t> offsets = {0, 6, 2};
  std::int64_t work = 10'000;
  ASSERT_TRUE(squeezer.squeeze(offsets, 16, work));
  EXPECT_TRUE(offsets[1] == 0 || offsets[1] == 4);
  for (const std::size_t i : {0u, 2u}) {
    EXPECT_LE(offsets[i] + bytes[i], 16u);
    EXPECT_TRUE(offsets[i] + bytes[i] <= offsets[1] || offsets[1] + bytes[1] <= offsets[i]);
  }
}

TEST(Replanner, RefusesSizesThatAreNotItsNodesAndLeavesTheOffsetsAlone) {
  const PlanProblem problem = random_problem(20, 3, 60);
  Replanner again = Replanner::make(problem, plan(problem).value()).value();
  std::vector<std::uint64_t> offsets(20, 5), bytes(19, 64);
  EXPECT_EQ(again.place(bytes, offsets).error().code(), Code::kInvalidArgument);
  bytes.assign(20, ~std::uint64_t{0});
  EXPECT_EQ(again.place(bytes, offsets).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(offsets, std::vector<std::uint64_t>(20, 5));
}

TEST(Replanner, RefusesProblemsThatAreNotPlainAndPlansOfOthers) {
  const PlanProblem plain = random_problem(10, 3, 60);
  const MemoryPlan known = plan(plain).value();
  PlanProblem problem = plain;
  problem.lifetimes[4].offset = 0;
  EXPECT_EQ(Replanner::make(problem, known).error().code(), Code::kUnsupported);
  problem = plain;
  problem.max_block_bytes = 1 << 20;
  EXPECT_EQ(Replanner::make(problem, known).error().code(), Code::kUnsupported);
  problem = plain;
  problem.lifetimes[7].alignment = std::uint64_t{1} << 50;
  EXPECT_TRUE(Replanner::make(problem, known));
  problem.lifetimes.resize(9);
  EXPECT_EQ(Replanner::make(problem, known).error().code(), Code::kInvalidArgument);
  problem = plain;
  problem.lifetimes[0].alignment = 3;
  EXPECT_EQ(Replanner::make(problem, known).error().code(), Code::kInvalidArgument);
}

TEST(Replan, KeepsUnchangedNodesWhereTheyAreWhenThatCostsNothing) {
  PlanProblem problem = bench::training_step(300, 5, 1.0);
  const MemoryPlan known = plan(problem).value();
  ASSERT_TRUE(known.optimal);
  // A small node less and another shorter: all others can stay.
  problem.lifetimes[10].bytes = 0;
  problem.lifetimes[20].bytes /= 2;
  const MemoryPlan made = replan(problem, known).value();
  EXPECT_FALSE(validate(problem, made));
  EXPECT_LE(made.size, known.size);
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    if (i != 10 && i != 20) {
      ASSERT_EQ(made.slots[i].offset, known.slots[i].offset) << i;
    }
  }
}

TEST(Replanner, RefusesMorePaddingThanOffsetsCanHold) {
  PlanProblem problem;
  for (std::int64_t i = 0; i < 1100; ++i) problem.lifetimes.push_back({.bytes = 16, .first = i, .last = i + 1});
  const MemoryPlan known = plan(problem).value();
  ASSERT_TRUE(Replanner::make(problem, known));
  problem.lifetimes[1].alignment = std::uint64_t{1} << 50;
  EXPECT_TRUE(test::fails_with(Replanner::make(problem, known), Code::kUnsupported));
  problem.lifetimes[1].alignment = 1;
  problem.alignment = std::uint64_t{1} << 50;
  EXPECT_TRUE(test::fails_with(Replanner::make(problem, known), Code::kUnsupported));
  // 2^60 bytes for all nodes and one more.
  for (const bool fits : {false, true}) {
    problem.alignment = 1;
    problem.lifetimes.resize(fits ? 1023 : 1024);
    const MemoryPlan fewer = plan(problem).value();
    problem.alignment = std::uint64_t{1} << 50;
    EXPECT_EQ(Replanner::make(problem, fewer).has_value(), fits) << problem.lifetimes.size();
  }
}

TEST(Replan, EveryPlanOfAChangedProblemIsValid) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    PlanProblem problem = random_problem(2 + random() % 80, seed, 60);
    for (std::size_t i = 1; i < problem.lifetimes.size(); ++i) {
      Lifetime& it = problem.lifetimes[i];
      if (random() % 10 == 0) it.lane = 1;
      if (random() % 10 == 0) it.alignment = 16;
      if (random() % 10 == 0 && it.last - it.first > 2) it.gaps = {{it.first + 1, it.first + 2}};
      if (random() % 10 == 0) it.reuse_in_place = static_cast<std::uint32_t>(random() % i);
    }
    if (random() % 4 == 0) problem.banks = {{"near", 300}, {"far", 0}};
    const MemoryPlan known = plan(problem, {.work_limit = 500, .threads = 1}).value();
    for (Lifetime& it : problem.lifetimes) {
      if (random() % 4 == 0) it.bytes = random() % (2 * it.bytes + 1);
    }
    if (random() % 2 == 0) problem.lifetimes.push_back({.bytes = 1 + random() % 50, .first = 3, .last = 9});
    if (random() % 4 == 0) problem.lifetimes.pop_back();
    const Result<MemoryPlan> made = replan(problem, known);
    if (!made) {
      RC_ASSERT(!problem.banks.empty());
      return;
    }
    const Violation violation = validate(problem, *made);
    if (violation) RC_FAIL(describe(violation, problem, *made));
  }));
}

}  // namespace
}  // namespace berth
