// Random problems with every rule in play: each plan must pass the independent validator, and none may be larger than
// a named strategy's.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "berth/plan/plan.h"

namespace berth {
namespace {

struct Features {
  bool alignment = false, fixed = false, pinned = false, lanes = false, aliases = false, in_place = false, gaps = false;
  bool hints = false, banks = false, blocks = false;
};

// A valid problem in which nodes make use of `features` now and then.
PlanProblem problem_from(std::uint64_t seed, std::size_t count, const Features& features) {
  std::mt19937_64 random(seed);
  const auto chance = [&](bool on, std::uint64_t one_in) { return on && random() % one_in == 0; };
  PlanProblem problem;
  if (features.alignment && random() % 2 == 0) problem.alignment = std::uint64_t{1} << (random() % 5);
  if (features.banks) problem.banks = {{"fast", 64 + random() % 300}, {"middle", 500}, {"slow", 0}};
  if (features.blocks) problem.max_block_bytes = 128 + random() % 200;
  std::uint64_t next_fixed = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    Lifetime it;
    it.first = static_cast<std::int64_t>(random() % 30);
    it.last = it.first + 1 + static_cast<std::int64_t>(random() % 8);
    it.bytes = random() % 20 == 0 ? 0 : 1 + random() % 60;
    if (chance(features.alignment, 3)) it.alignment = std::uint64_t{1} << (random() % 6);
    if (chance(features.lanes, 3)) it.lane = 1 + static_cast<std::uint32_t>(random() % 2);
    if (i > 0 && chance(features.aliases, 4)) {
      const auto of = static_cast<std::uint32_t>(random() % i);
      const Lifetime& root = problem.lifetimes[of];
      it.lane = root.lane;
      it.alignment = 1;
      const std::uint64_t offset = root.bytes == 0 ? 0 : random() % root.bytes;
      it.bytes = root.bytes == 0 ? 0 : 1 + random() % (root.bytes - offset);
      it.alias = AliasOf{of, offset};
    } else {
      if (chance(features.pinned, 12)) it.pinned = true;
      if (chance(features.gaps, 4) && !it.pinned && it.last - it.first >= 3) {
        it.gaps.push_back({it.first + 1, it.first + 2});
      }
      if (chance(features.hints, 4)) it.hint = random() % 400;
      if (chance(features.banks, 6)) it.bank = 1;
      // In the first block, apart from each other: always possible where blocks have no limit.
      if (chance(features.fixed && !features.banks && !features.blocks, 10) && it.bytes > 0) {
        const std::uint64_t alignment = std::max(it.alignment, problem.alignment);
        it.offset = (next_fixed + alignment - 1) / alignment * alignment;
        next_fixed = *it.offset + it.bytes + random() % 40;
      }
      if (i > 0 && chance(features.in_place, 2)) {
        const auto of = static_cast<std::uint32_t>(random() % i);
        it.reuse_in_place = of;
        if (!problem.lifetimes[of].pinned && it.gaps.empty()) {  // often where it is allowed
          const std::int64_t length = it.last - it.first;
          it.first = problem.lifetimes[of].last - 1;
          it.last = it.first + length;
          it.lane = problem.lifetimes[of].lane;
        }
      }
    }
    problem.lifetimes.push_back(std::move(it));
  }
  return problem;
}

void check(const PlanProblem& problem, std::uint64_t work) {
  const Result<MemoryPlan> made = plan(problem, {.work_limit = work, .threads = 1});
  if (!made) {
    // Only limits can be too tight.
    RC_ASSERT(made.error().code() == Code::kNotFound || made.error().code() == Code::kInfeasible);
    RC_ASSERT(!problem.banks.empty() || problem.max_block_bytes != 0);
    return;
  }
  const Violation violation = validate(problem, *made);
  if (violation) RC_FAIL(describe(violation, problem, *made));
  for (const StrategyInfo& info : strategies()) {
    const Result<MemoryPlan> alone = plan_with(info.name, problem);
    if (!alone) {
      RC_ASSERT(alone.error().code() == Code::kNotFound);
      continue;
    }
    const Violation broken = validate(problem, *alone);
    if (broken) RC_FAIL(std::string(info.name) + ": " + describe(broken, problem, *alone));
    if (problem.banks.empty() && problem.max_block_bytes == 0) RC_ASSERT(made->size <= alone->size);
  }
}

TEST(PlanProperty, EveryPlanOfPlainLifetimesIsValidAndNoLargerThanAnyStrategys) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) { check(problem_from(seed, 1 + seed % 70, {}), 2000); }));
}

TEST(PlanProperty, EveryPlanWithOneFeatureIsValid) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    Features features;
    bool* const all[] = {&features.alignment, &features.fixed, &features.pinned, &features.lanes, &features.aliases,
                         &features.in_place,  &features.gaps,  &features.hints,  &features.banks, &features.blocks};
    *all[*rc::gen::inRange<std::size_t>(0, std::size(all))] = true;
    check(problem_from(seed, 2 + seed % 50, features), 1000);
  }));
}

TEST(PlanProperty, EveryPlanWithManyFeaturesIsValid) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const Features features{*rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(),
                            *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(),
                            *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(),
                            *rc::gen::arbitrary<bool>()};
    check(problem_from(seed, 2 + seed % 40, features), 1000);
  }));
}

TEST(PlanProperty, TheBoundIsNeverAboveAnyPlan) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    Features features;
    features.alignment = features.in_place = features.gaps = features.aliases = true;
    const PlanProblem problem = problem_from(seed, 2 + seed % 25, features);
    const MemoryPlan made = plan(problem, {.work_limit = 20'000, .threads = 1}).value();
    for (const StrategyInfo& info : strategies()) RC_ASSERT(made.lower_bound <= plan_with(info.name, problem)->size);
  }));
}

}  // namespace
}  // namespace berth
