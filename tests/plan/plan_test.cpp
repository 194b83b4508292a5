// The planner: each rule of a Lifetime, each failure, and the promises about limits, progress and cancelling.
#include "berth/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "plan/placement/strategies.h"
#include "support/plan_instances.h"
#include "support/plan_problems.h"

namespace berth {

using namespace internal;

namespace {

using test::expect_disjoint;
using test::live_load;
using test::random_problem;
using test::share_bytes;

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
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].first -= 1; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].last += 1; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].alignment *= 2; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].offset = 0; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].lane = 1; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].hint = 0; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].bank = 0; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{1, 0}; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].gaps = {{1, 2}}; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].reuse_in_place = 0; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.lifetimes[2].pinned = true; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.capacity = 5; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.alignment *= 2; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.max_block_bytes = 5; }));
  EXPECT_TRUE(differs([](PlanProblem& p) { p.banks.push_back({"x", 3}); }));
  EXPECT_TRUE(differs([](PlanProblem& p) { std::swap(p.lifetimes[0], p.lifetimes[1]); }));
  EXPECT_FALSE(differs([](PlanProblem& p) { p.lifetimes[2].label = "name"; }));
}

// Plans in files carry it, and must be found again by every later version.
TEST(Plan, FingerprintsStayTheSame) {
  const PlanProblem problem{.lifetimes = {{.bytes = 4096,
                                           .first = -2,
                                           .last = 9,
                                           .alignment = 64,
                                           .offset = 128,
                                           .pinned = true,
                                           .lane = 3,
                                           .gaps = {{1, 2}, {4, 7}},
                                           .hint = 256,
                                           .bank = 1},
                                          {.bytes = 1024, .first = 1, .last = 3, .alias = AliasOf{0, 512}},
                                          {.bytes = 1024, .first = 3, .last = 5, .reuse_in_place = 1}},
                            .capacity = 1 << 20,
                            .alignment = 16,
                            .banks = {{"near", 1000}, {"far", 2000}},
                            .max_block_bytes = 8192};
  EXPECT_EQ(fingerprint(problem), 0xb0a4903d8fd7a82au);
}

TEST(Plan, MakesAPlanForManyNodesEvenWithNoTimeAtAll) {
  const PlanProblem problem = bench::heavy_tailed_problem(100'000, 7);
  const MemoryPlan made = plan(problem, {.time_limit = 0.0}).value();
  EXPECT_LE(made.size, made.lower_bound * 11 / 10);
}

}  // namespace
}  // namespace berth
