// The planner: each rule of a Lifetime, each failure, and the promises about bounds, limits and threads.
#include "berth/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "../bench/plan_instances.h"
#include "planner/bounds.h"
#include "planner/conflicts.h"
#include "planner/ejection.h"
#include "planner/placer.h"
#include "planner/strategies.h"

namespace berth {
namespace {

// Whether two slots share a byte of one block.
bool share_bytes(const Slot& a, const Slot& b) {
  return a.block == b.block && a.block != kNoBlock && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// Quadratic on purpose, and for plain lifetimes only: no aliases, gaps or in-place reuse.
void expect_disjoint(const PlanProblem& problem, const MemoryPlan& plan) {
  ASSERT_EQ(plan.slots.size(), problem.lifetimes.size());
  std::uint64_t top = 0;
  for (std::size_t a = 0; a < plan.slots.size(); ++a) {
    const Lifetime& life = problem.lifetimes[a];
    EXPECT_EQ(plan.slots[a].bytes, life.bytes);
    if (life.bytes == 0) continue;
    ASSERT_LT(plan.slots[a].block, plan.blocks.size());
    EXPECT_EQ(plan.slots[a].offset % std::max(life.alignment, problem.alignment), 0u);
    EXPECT_LE(plan.slots[a].offset + life.bytes, plan.blocks[plan.slots[a].block].bytes);
    top = std::max(top, plan.slots[a].offset + life.bytes);
    for (std::size_t b = 0; b < a; ++b) {
      const Lifetime& other = problem.lifetimes[b];
      const bool together = life.pinned || other.pinned || (life.first < other.last && other.first < life.last);
      EXPECT_FALSE(together && share_bytes(plan.slots[a], plan.slots[b])) << "nodes " << a << " and " << b;
    }
  }
  std::uint64_t sum = 0;
  for (const PlanBlock& block : plan.blocks) sum += block.bytes;
  EXPECT_EQ(plan.size, sum);
  EXPECT_LE(plan.lower_bound, plan.size);
  EXPECT_EQ(plan.optimal, plan.lower_bound == plan.size);
  EXPECT_TRUE(plan.blocks.size() != 1 || plan.size == top);
}

PlanProblem random_problem(std::size_t count, std::uint64_t seed, std::int64_t levels = 40) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(levels));
    const auto length = 1 + static_cast<std::int64_t>(random() % 12);
    problem.lifetimes.push_back({.bytes = 1 + random() % 64, .first = first, .last = first + length});
  }
  return problem;
}

std::uint64_t live_load(const PlanProblem& problem) {
  std::uint64_t peak = 0;
  for (const Lifetime& at : problem.lifetimes) {
    std::uint64_t load = 0;
    for (const Lifetime& it : problem.lifetimes) {
      if (it.first <= at.first && at.first < it.last) load += it.bytes;
    }
    peak = std::max(peak, load);
  }
  return peak;
}

TEST(Plan, PacksTwoOverlappingNodesOnTopOfEachOther) {
  const MemoryPlan made =
      plan({{.bytes = 4096, .first = 0, .last = 2}, {.bytes = 8192, .first = 1, .last = 3}}).value();
  EXPECT_EQ(made.size, 12288u);
  EXPECT_TRUE(made.optimal);
  EXPECT_EQ(made.gap(), 0.0);
  EXPECT_FALSE(share_bytes(made.slots[0], made.slots[1]));
}

TEST(Plan, ReusesBytesOfANodeWhoseLevelsAreOver) {
  const MemoryPlan made = plan({{.bytes = 100, .first = 0, .last = 2}, {.bytes = 100, .first = 2, .last = 3}}).value();
  EXPECT_EQ(made.size, 100u);
}

TEST(Plan, AnEarlyReaderThatRunsLateNeverSeesItsInputOverwritten) {
  // Node 0 is written in level 0 and read by a step of level 1; node 1 is written by another step of level 1. Nothing
  // orders the two steps of level 1, so the reader may run after the writer: they must not share bytes.
  const PlanProblem problem{.lifetimes = {{.bytes = 64, .first = 0, .last = 2}, {.bytes = 64, .first = 1, .last = 2}}};
  const MemoryPlan made = plan(problem).value();
  EXPECT_FALSE(share_bytes(made.slots[0], made.slots[1]));
  EXPECT_EQ(made.size, 128u);
  for (const StrategyInfo& info : strategies()) {
    const MemoryPlan alone = plan_with(info.name, problem).value();
    EXPECT_FALSE(share_bytes(alone.slots[0], alone.slots[1])) << info.name;
  }
}

TEST(Plan, AnEmptyProblemHasAnEmptyPlan) {
  const MemoryPlan made = plan(PlanProblem{}).value();
  EXPECT_EQ(made.size, 0u);
  EXPECT_TRUE(made.optimal);
  EXPECT_TRUE(made.blocks.empty());
}

TEST(Plan, GivesNodesOfZeroBytesNoSlot) {
  const MemoryPlan made = plan({{.bytes = 0, .first = 0, .last = 2}, {.bytes = 8, .first = 0, .last = 1}}).value();
  EXPECT_FALSE(made.has(0));
  EXPECT_TRUE(made.has(1));
  EXPECT_FALSE(made.has(2));
  EXPECT_EQ(made.size, 8u);
}

TEST(Plan, KeepsAlignmentOfNodesAndOfTheProblem) {
  PlanProblem problem = random_problem(60, 3);
  problem.alignment = 16;
  for (std::size_t i = 0; i < problem.lifetimes.size(); i += 3) problem.lifetimes[i].alignment = 64;
  expect_disjoint(problem, plan(problem, {.work_limit = 20'000}).value());
}

TEST(Plan, CountsPaddingBetweenAlignedNodesInTheBound) {
  const MemoryPlan made =
      plan({.lifetimes = {{.bytes = 33, .first = 0, .last = 1}, {.bytes = 33, .first = 0, .last = 1}}, .alignment = 32})
          .value();
  EXPECT_EQ(made.size, 97u);
  EXPECT_TRUE(made.optimal);
}

TEST(Plan, PutsAFixedNodeWhereItMustBe) {
  PlanProblem problem = random_problem(40, 5);
  problem.lifetimes[7].offset = 512;
  problem.lifetimes[9].offset = 0;
  const MemoryPlan made = plan(problem, {.work_limit = 20'000}).value();
  expect_disjoint(problem, made);
  EXPECT_EQ(made.slots[7].offset, 512u);
  EXPECT_EQ(made.slots[9].offset, 0u);
}

TEST(Plan, TheSearchPacksAroundFixedNodes) {
  // Below the fixed node is room for exactly the 10 and the 20, above it for nothing else within 100.
  const PlanProblem problem{.lifetimes = {{.bytes = 70, .first = 0, .last = 4, .offset = 30},
                                          {.bytes = 10, .first = 0, .last = 4},
                                          {.bytes = 20, .first = 0, .last = 2},
                                          {.bytes = 20, .first = 2, .last = 4}},
                            .capacity = 100};
  const MemoryPlan made = plan(problem).value();
  expect_disjoint(problem, made);
  EXPECT_EQ(made.size, 100u);
}

TEST(Plan, RefusesTwoFixedNodesThatCollide) {
  const auto made =
      plan({{.bytes = 8, .first = 0, .last = 2, .offset = 0}, {.bytes = 8, .first = 1, .last = 3, .offset = 4}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInfeasible);
}

TEST(Plan, APinnedNodeSharesBytesWithNobody) {
  PlanProblem problem = random_problem(30, 11);
  problem.lifetimes[4].pinned = true;
  problem.lifetimes[5].pinned = true;
  problem.lifetimes[5].first = problem.lifetimes[5].last = 0;
  expect_disjoint(problem, plan(problem, {.work_limit = 20'000}).value());
}

TEST(Plan, FollowsChainsOfAliases) {
  // 3 is a window of 2, a window of 1, a window of 0. The last of them to live keeps the root's bytes.
  const PlanProblem problem{.lifetimes = {{.bytes = 100, .first = 0, .last = 2},
                                          {.bytes = 80, .first = 2, .last = 3, .alias = AliasOf{0, 20}},
                                          {.bytes = 40, .first = 3, .last = 4, .alias = AliasOf{1, 8}},
                                          {.bytes = 4, .first = 7, .last = 8, .alias = AliasOf{2, 4}},
                                          {.bytes = 50, .first = 5, .last = 6}}};
  const MemoryPlan made = plan(problem).value();
  const std::uint64_t root = made.slots[0].offset;
  EXPECT_EQ(made.slots[1].offset, root + 20);
  EXPECT_EQ(made.slots[2].offset, root + 28);
  EXPECT_EQ(made.slots[3].offset, root + 32);
  EXPECT_FALSE(share_bytes(made.slots[4], made.slots[0]));  // its levels lie inside the chain's
  EXPECT_EQ(made.size, 150u);
}

TEST(Plan, AnAliasCanComeBeforeTheNodeItNames) {
  const MemoryPlan made =
      plan({{.bytes = 4, .first = 1, .last = 3, .alias = AliasOf{1, 4}}, {.bytes = 8, .first = 0, .last = 1}}).value();
  EXPECT_EQ(made.slots[0].offset, made.slots[1].offset + 4);
  EXPECT_EQ(made.size, 8u);
}

TEST(Plan, RefusesACycleOfAliases) {
  const auto made = plan({{.bytes = 4, .first = 0, .last = 1, .alias = AliasOf{1}},
                          {.bytes = 4, .first = 0, .last = 1, .alias = AliasOf{2}},
                          {.bytes = 4, .first = 0, .last = 1, .alias = AliasOf{0}}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kCycle);
}

TEST(Plan, TakesBytesOverInPlace) {
  // Each reads the one before in the level in which it is written; with a level in common they would need 200.
  const PlanProblem problem{.lifetimes = {{.bytes = 100, .first = 0, .last = 2},
                                          {.bytes = 100, .first = 1, .last = 3, .reuse_in_place = 0},
                                          {.bytes = 60, .first = 2, .last = 4, .reuse_in_place = 1}}};
  const MemoryPlan made = plan(problem).value();
  EXPECT_EQ(made.size, 100u);
  EXPECT_TRUE(made.optimal);
  EXPECT_EQ(made.slots[0].offset, made.slots[1].offset);
  EXPECT_EQ(made.slots[1].offset, made.slots[2].offset);
}

TEST(Plan, DoesNotReuseInPlaceWhatIsStillRead) {
  const MemoryPlan made =
      plan({{.bytes = 100, .first = 0, .last = 3}, {.bytes = 100, .first = 1, .last = 4, .reuse_in_place = 0}}).value();
  EXPECT_FALSE(share_bytes(made.slots[0], made.slots[1]));
  // An alias keeps the node alive too.
  const MemoryPlan held = plan({{.bytes = 100, .first = 0, .last = 2},
                                {.bytes = 100, .first = 1, .last = 4, .reuse_in_place = 0},
                                {.bytes = 100, .first = 2, .last = 3, .alias = AliasOf{0}}})
                              .value();
  EXPECT_FALSE(share_bytes(held.slots[0], held.slots[1]));
}

TEST(Plan, OnlyOneNodeTakesOverInPlace) {
  const MemoryPlan made = plan({{.bytes = 100, .first = 0, .last = 2},
                                {.bytes = 40, .first = 1, .last = 3, .reuse_in_place = 0},
                                {.bytes = 60, .first = 1, .last = 3, .reuse_in_place = 0}})
                              .value();
  EXPECT_FALSE(share_bytes(made.slots[1], made.slots[2]));
  EXPECT_EQ(made.size, 140u);
}

TEST(Plan, DoesNotTakeOverMoreThanThereIs) {
  const MemoryPlan made =
      plan({{.bytes = 50, .first = 0, .last = 2}, {.bytes = 100, .first = 1, .last = 3, .reuse_in_place = 0}}).value();
  EXPECT_FALSE(share_bytes(made.slots[0], made.slots[1]));
}

TEST(Plan, UsesBytesDuringAGap) {
  const PlanProblem problem{
      .lifetimes = {{.bytes = 100, .first = 0, .last = 10, .gaps = {{3, 6}}}, {.bytes = 100, .first = 3, .last = 6}}};
  const MemoryPlan made = plan(problem).value();
  EXPECT_EQ(made.size, 100u);
  const MemoryPlan wider =
      plan({{.bytes = 100, .first = 0, .last = 10, .gaps = {{3, 6}}}, {.bytes = 100, .first = 3, .last = 7}}).value();
  EXPECT_EQ(wider.size, 200u);
}

TEST(Plan, AnAliasThatLivesInAGapFillsIt) {
  const MemoryPlan made = plan({{.bytes = 100, .first = 0, .last = 10, .gaps = {{3, 6}}},
                                {.bytes = 10, .first = 4, .last = 5, .alias = AliasOf{0}},
                                {.bytes = 100, .first = 3, .last = 6},
                                {.bytes = 100, .first = 5, .last = 6}})
                              .value();
  EXPECT_FALSE(share_bytes(made.slots[2], made.slots[0]));
}

TEST(Plan, GivesEachLaneItsOwnBlock) {
  const PlanProblem problem{.lifetimes = {{.bytes = 10, .first = 0, .last = 1, .lane = 0},
                                          {.bytes = 20, .first = 1, .last = 2, .lane = 3},
                                          {.bytes = 30, .first = 2, .last = 3, .lane = 0}}};
  const MemoryPlan made = plan(problem).value();
  ASSERT_EQ(made.blocks.size(), 2u);
  EXPECT_EQ(made.blocks[0], (PlanBlock{30, 0, 0}));
  EXPECT_EQ(made.blocks[1], (PlanBlock{20, 0, 3}));
  EXPECT_EQ(made.slots[0].block, 0u);
  EXPECT_EQ(made.slots[1].block, 1u);
  EXPECT_EQ(made.size, 50u);
  EXPECT_TRUE(made.optimal);
}

TEST(Plan, SpillsFromTheFirstBankToTheNext) {
  PlanProblem problem = random_problem(60, 17);
  problem.banks = {{"sram", 256}, {"dram", 0}};
  const MemoryPlan made = plan(problem, {.work_limit = 20'000}).value();
  expect_disjoint(problem, made);
  ASSERT_EQ(made.blocks.size(), 2u);
  EXPECT_EQ(made.blocks[0].bank, 0u);
  EXPECT_LE(made.blocks[0].bytes, 256u);
  EXPECT_EQ(made.blocks[1].bank, 1u);
}

TEST(Plan, StaysInTheFirstBankWhenEverythingFits) {
  PlanProblem problem = random_problem(40, 19);
  problem.banks = {{"sram", 100'000}, {"dram", 0}};
  const MemoryPlan made = plan(problem, {.work_limit = 20'000}).value();
  expect_disjoint(problem, made);
  ASSERT_EQ(made.blocks.size(), 1u);
  EXPECT_EQ(made.blocks[0].bank, 0u);
}

TEST(Plan, PutsNothingIntoABankBeforeTheOneItPrefers) {
  PlanProblem problem = random_problem(20, 23);
  problem.banks = {{"sram", 0}, {"dram", 0}};
  problem.lifetimes[3].bank = 1;
  problem.lifetimes[8].bank = 1;
  const MemoryPlan made = plan(problem, {.work_limit = 20'000}).value();
  expect_disjoint(problem, made);
  EXPECT_EQ(made.blocks[made.slots[3].block].bank, 1u);
  EXPECT_EQ(made.blocks[made.slots[8].block].bank, 1u);
  EXPECT_EQ(made.blocks[made.slots[0].block].bank, 0u);
}

TEST(Plan, LanesShareTheCapacityOfABank) {
  const PlanProblem problem{
      .lifetimes = {{.bytes = 60, .first = 0, .last = 1, .lane = 0}, {.bytes = 60, .first = 0, .last = 1, .lane = 1}},
      .banks = {{"sram", 100}, {"dram", 0}}};
  const MemoryPlan made = plan(problem).value();
  EXPECT_EQ(made.blocks[made.slots[0].block].bank, 0u);
  EXPECT_EQ(made.blocks[made.slots[1].block].bank, 1u);
}

TEST(Plan, SplitsAPlanIntoBlocksNoLargerThanTheLimit) {
  PlanProblem problem = random_problem(80, 29);
  problem.max_block_bytes = 100;
  const MemoryPlan made = plan(problem, {.work_limit = 20'000}).value();
  expect_disjoint(problem, made);
  EXPECT_GT(made.blocks.size(), 1u);
  for (const PlanBlock& block : made.blocks) EXPECT_LE(block.bytes, 100u);
}

TEST(Plan, RefusesANodeLargerThanAnyBlock) {
  const auto made = plan(PlanProblem{.lifetimes = {{.bytes = 101, .first = 0, .last = 1}}, .max_block_bytes = 100});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInfeasible);
}

TEST(Plan, ProvesThatBanksAreTooSmallForTheLiveLoad) {
  PlanProblem problem{.lifetimes = {{.bytes = 60, .first = 0, .last = 2}, {.bytes = 60, .first = 1, .last = 3}},
                      .banks = {{"a", 60}, {"b", 50}}};
  const auto made = plan(problem);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInfeasible);
}

TEST(Plan, SaysWhenNoRuleFindsRoomInTheBanks) {
  // The load fits the banks' sum, but no bank holds two of these.
  const PlanProblem problem{.lifetimes = {{.bytes = 60, .first = 0, .last = 1},
                                          {.bytes = 60, .first = 0, .last = 1},
                                          {.bytes = 60, .first = 0, .last = 1}},
                            .banks = {{"a", 100}, {"b", 100}}};
  const auto made = plan(problem);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kNotFound);
  const auto alone = plan_with("smallest_gap", problem);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code(), Code::kNotFound);
}

TEST(Plan, PrefersHintsWhenTheyCostNothing) {
  const PlanProblem problem{
      .lifetimes = {{.bytes = 10, .first = 0, .last = 2, .hint = 20}, {.bytes = 20, .first = 0, .last = 2, .hint = 0}}};
  const MemoryPlan made = plan(problem).value();
  EXPECT_EQ(made.slots[0].offset, 20u);
  EXPECT_EQ(made.slots[1].offset, 0u);
  const MemoryPlan far = plan({{.bytes = 10, .first = 0, .last = 2, .hint = 1000}}).value();
  EXPECT_EQ(far.size, 10u);
}

TEST(Plan, RefusesLifetimesOutsideTheirRange) {
  const auto refused = [](Lifetime bad) {
    PlanProblem problem{.lifetimes = {{.bytes = 8, .first = 0, .last = 4}, std::move(bad)}};
    const auto made = plan(problem);
    return !made && made.error().code() == Code::kInvalidArgument &&
           made.error().message().find("node 1") != std::string::npos;
  };
  EXPECT_TRUE(refused({.bytes = 8, .first = 2, .last = 2}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 2, .last = 1}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .alignment = 3}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .alignment = 0}));
  EXPECT_TRUE(refused({.bytes = std::uint64_t{1} << 60, .first = 0, .last = 1}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .alignment = 8, .offset = 4}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .offset = std::uint64_t{1} << 60}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .bank = 1}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .reuse_in_place = 1}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .reuse_in_place = 9}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 1, .pinned = true, .gaps = {{0, 1}}}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 9, .gaps = {{3, 3}}}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 9, .gaps = {{3, 5}, {4, 6}}}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 9, .gaps = {{3, 10}}}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 9, .alias = AliasOf{7}}));
  EXPECT_TRUE(refused({.bytes = 8, .first = 0, .last = 9, .alias = AliasOf{0, 1}}));
  EXPECT_TRUE(refused({.bytes = 4, .first = 0, .last = 9, .alignment = 4, .alias = AliasOf{0, 2}}));
  EXPECT_TRUE(refused({.bytes = 4, .first = 0, .last = 9, .lane = 1, .alias = AliasOf{0}}));
  EXPECT_TRUE(refused({.bytes = 4, .first = 0, .last = 9, .offset = 0, .alias = AliasOf{0}}));
}

TEST(Plan, RefusesAProblemOutsideItsRange) {
  const Lifetime one{.bytes = 8, .first = 0, .last = 1};
  EXPECT_EQ(plan(PlanProblem{.lifetimes = {one}, .alignment = 3}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan(PlanProblem{.lifetimes = {one}, .banks = std::vector<Bank>(5000)}).error().code(),
            Code::kInvalidArgument);
  const Lifetime huge{.bytes = std::uint64_t{1} << 49, .first = 0, .last = 1};
  EXPECT_EQ(plan(PlanProblem{.lifetimes = {huge, huge, huge}}).error().code(), Code::kInvalidArgument);
}

TEST(Plan, StopsAtTheFirstPlanThatFitsTheCapacity) {
  PlanProblem problem = random_problem(50, 31);
  const std::uint64_t bound = plan_lower_bound(problem).value();
  problem.capacity = 4 * bound;
  const MemoryPlan made = plan(problem).value();
  EXPECT_LE(made.size, 4 * bound);
  const MemoryPlan smallest = plan(problem, {.smallest = true}).value();
  EXPECT_LE(smallest.size, made.size);
  expect_disjoint(problem, smallest);
}

TEST(Plan, ProvesThatACapacityBelowTheLoadIsImpossible) {
  PlanProblem problem = random_problem(50, 37);
  problem.capacity = live_load(problem) - 1;
  const auto made = plan(problem);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInfeasible);
}

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

TEST(Plan, FindsTheSmallestSizeAndProvesItOnSmallProblems) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
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

TEST(Plan, ProvesBoundsAboveTheLiveLoad) {
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

TEST(Plan, SaysWhenTheLimitEndedTheSearch) {
  PlanProblem problem = bench::guillotine_problem(400, 0.0, 3);
  const auto made = plan(problem, {.work_limit = 50, .threads = 1});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kNotFound);
}

TEST(Plan, SolvesWhatIsFeasibleByConstruction) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const PlanProblem problem = bench::guillotine_problem(60 + 20 * seed, 0.02, seed);
    expect_disjoint(problem, plan(problem).value());
  }
}

TEST(Plan, ReachesTheBoundOnDenselyConnectedBlocks) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const PlanProblem problem = bench::densenet_problem(seed);
    const MemoryPlan made = plan(problem).value();
    expect_disjoint(problem, made);
    EXPECT_TRUE(made.optimal);
  }
}

TEST(Plan, IsTheSameOnAnyNumberOfThreads) {
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

TEST(Plan, IsTheSameOnAnyNumberOfThreadsWhenLarge) {
  const PlanProblem problem = bench::heavy_tailed_problem(6000, 5);
  const MemoryPlan one = plan(problem, {.work_limit = 30'000, .threads = 1}).value();
  const MemoryPlan four = plan(problem, {.work_limit = 30'000, .threads = 4}).value();
  EXPECT_EQ(one.slots, four.slots);
  EXPECT_EQ(one.work, four.work);
}

TEST(Plan, EjectionImprovesALayoutTheSameOnAnyNumberOfThreads) {
  const PlanProblem problem = random_problem(300, 41, 60);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout start = planner::online_best_fit(models[0]);
  const auto run = [&](unsigned threads) {
    planner::Crew crew(threads);
    planner::EjectionLimits limits;
    limits.work = 20'000;
    limits.goal = planner::load_bound(models[0]);
    std::uint64_t last = start.top;
    return planner::improve_by_ejection(models[0], start, limits, crew, [&](const planner::EjectionResult& now) {
      EXPECT_LT(now.best.top, last);
      last = now.best.top;
    });
  };
  const planner::EjectionResult one = run(1);
  EXPECT_LT(one.best.top, start.top);
  for (std::size_t a = 0; a < 300; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const Lifetime &x = problem.lifetimes[a], &y = problem.lifetimes[b];
      if (x.first >= y.last || y.first >= x.last) continue;
      const std::uint64_t p = one.best.offsets[a], q = one.best.offsets[b];
      EXPECT_TRUE(p + x.bytes <= q || q + y.bytes <= p) << a << " and " << b;
    }
  }
  for (const unsigned threads : {2u, 4u}) {
    const planner::EjectionResult other = run(threads);
    EXPECT_EQ(one.best.offsets, other.best.offsets) << threads << " threads";
    EXPECT_EQ(one.work, other.work);
  }
}

TEST(Plan, PlacesInPiecesTheSameOnAnyNumberOfThreads) {
  const PlanProblem problem = bench::exponential_problem(3000, 9);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const std::vector<std::uint32_t> order = planner::order_by_size_and_length(models[0]);
  const auto run = [&](unsigned threads) {
    planner::Crew crew(threads);
    return planner::place_in_pieces(models[0], order, planner::Fit::kFirst, crew);
  };
  const planner::Layout one = run(1);
  EXPECT_EQ(one.top, planner::top_of(models[0], one.offsets));
  for (std::size_t a = 0; a < problem.lifetimes.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const Lifetime &x = problem.lifetimes[a], &y = problem.lifetimes[b];
      if (x.first >= y.last || y.first >= x.last) continue;
      const std::uint64_t p = one.offsets[a], q = one.offsets[b];
      ASSERT_TRUE(p + x.bytes <= q || q + y.bytes <= p) << a << " and " << b;
    }
  }
  EXPECT_EQ(one.offsets, run(3).offsets);
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

TEST(Plan, ConflictSearchLowersALayoutUntilNothingOverlapsUnderTheLid) {
  PlanProblem problem = random_problem(200, 43, 60);
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const std::uint64_t before = planner::online_best_fit(models[0]).top;
  const planner::Layout found = search_conflicts(problem, 10'000, 20'000);
  EXPECT_LT(found.top, before);
  EXPECT_EQ(found.top, planner::top_of(models[0], found.offsets));
  for (std::size_t a = 0; a < problem.lifetimes.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const Lifetime &x = problem.lifetimes[a], &y = problem.lifetimes[b];
      if (x.first >= y.last || y.first >= x.last) continue;
      const std::uint64_t p = found.offsets[a], q = found.offsets[b];
      EXPECT_TRUE(p + x.bytes <= q || q + y.bytes <= p) << a << " and " << b;
    }
  }
}

TEST(Plan, ConflictSearchRoundsSizesThatHaveNoCommonUnit) {
  PlanProblem problem = random_problem(200, 43, 60);
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    problem.lifetimes[i].bytes = problem.lifetimes[i].bytes * 10'007 + i;  // far more units than it keeps apart
  }
  const std::vector<planner::Model> models = planner::build_models(problem, true).value();
  const planner::Layout found = search_conflicts(problem, 20'000, 20'000);
  EXPECT_LT(found.top, planner::online_best_fit(models[0]).top);
  EXPECT_EQ(found.top, planner::top_of(models[0], found.offsets));
}

TEST(Plan, ConflictSearchLeavesItemsWithGapsAndFixedOffsetsToOthers) {
  PlanProblem problem = random_problem(30, 44, 60);
  EXPECT_TRUE(planner::ConflictSearch::suits(planner::build_models(problem, true).value()[0]));
  PlanProblem fixed = problem;
  fixed.lifetimes[0].offset = 0;
  EXPECT_FALSE(planner::ConflictSearch::suits(planner::build_models(fixed, true).value()[0]));
  PlanProblem aligned = problem;
  aligned.lifetimes[0].alignment = 64;
  EXPECT_FALSE(planner::ConflictSearch::suits(planner::build_models(aligned, true).value()[0]));
}

TEST(Plan, IsNeverLargerThanAnyNamedStrategy) {
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

TEST(Plan, IsNeverLargerThanAnyNamedStrategyWhenLarge) {
  const PlanProblem problem = bench::exponential_problem(5000, 3);
  const MemoryPlan made = plan(problem, {.work_limit = 5'000}).value();
  for (const StrategyInfo& info : strategies()) EXPECT_LE(made.size, plan_with(info.name, problem)->size) << info.name;
}

TEST(Plan, RefusesAnUnknownStrategyAndNamesThoseThereAre) {
  const auto made = plan_with("magic", random_problem(3, 1));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kNotFound);
  EXPECT_NE(made.error().message().find("smallest_gap"), std::string::npos);
}

TEST(Plan, ProgressNeverWorsens) {
  const PlanProblem hard = bench::guillotine_problem(150, 0.0, 4);
  std::vector<PlanProgress> seen;
  const auto caller = std::this_thread::get_id();
  const MemoryPlan made =
      plan(PlanProblem{.lifetimes = hard.lifetimes}, {.work_limit = 30'000,
                                                      .threads = 2,
                                                      .progress =
                                                          [&](const PlanProgress& now) {
                                                            EXPECT_EQ(std::this_thread::get_id(), caller);
                                                            EXPECT_FALSE(now.strategy.empty());
                                                            seen.push_back(now);
                                                          }})
          .value();
  ASSERT_FALSE(seen.empty());
  for (std::size_t i = 1; i < seen.size(); ++i) {
    EXPECT_LE(seen[i].best, seen[i - 1].best);
    EXPECT_GE(seen[i].lower_bound, seen[i - 1].lower_bound);
    EXPECT_GE(seen[i].work, seen[i - 1].work);
  }
  EXPECT_EQ(seen.back().best, made.size);
}

TEST(Plan, ReturnsTheBestSoFarWhenCancelled) {
  std::stop_source stop;
  const PlanProblem hard = bench::guillotine_problem(400, 0.0, 3);
  const PlanProblem problem{.lifetimes = hard.lifetimes};
  PlanOptions options;
  options.work_limit = ~std::uint64_t{0};
  options.cancel = stop.get_token();
  options.progress = [&](const PlanProgress&) { stop.request_stop(); };
  const auto made = plan(problem, options);
  ASSERT_TRUE(made);
  expect_disjoint(problem, *made);
}

TEST(Plan, SaysThatItWasCancelledBeforeAnythingFitted) {
  std::stop_source stop;
  stop.request_stop();
  PlanOptions options;
  options.cancel = stop.get_token();
  const auto made = plan(bench::guillotine_problem(300, 0.0, 3), options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kCancelled);
}

TEST(Plan, FingerprintsTellProblemsApart) {
  const PlanProblem problem = random_problem(10, 1);
  EXPECT_EQ(fingerprint(problem), fingerprint(PlanProblem(problem)));
  EXPECT_EQ(plan(problem)->fingerprint, fingerprint(problem));
  const auto differs = [&](auto change) {
    PlanProblem other = problem;
    change(other);
    return fingerprint(other) != fingerprint(problem);
  };
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].bytes += 1; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].last += 1; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{1, 0}; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].gaps = {{1, 2}}; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].reuse_in_place = 0; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].pinned = true; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.capacity = 5; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.banks.push_back({"x", 3}); }));
  EXPECT_TRUE(differs([](PlanProblem& p) { std::swap(p.lifetimes[0], p.lifetimes[1]); }));
  EXPECT_FALSE(differs([](PlanProblem& p) { p.lifetimes[2].label = "name"; }));
}

TEST(Plan, MakesAPlanForManyNodesEvenWithNoTimeAtAll) {
  const PlanProblem problem = bench::heavy_tailed_problem(100'000, 7);
  const MemoryPlan made = plan(problem, {.time_limit = 0.0}).value();
  EXPECT_LE(made.size, made.lower_bound * 11 / 10);
}

}  // namespace
}  // namespace berth
