#include "run/let_down.h"

#include <gtest/gtest.h>

#include <random>

#include "support/replay_fixtures.h"

namespace berth::internal::replay {
namespace {

PlanProblem random_problem(std::mt19937& random, std::size_t nodes) {
  PlanProblem problem;
  for (std::size_t i = 0; i < nodes; ++i) {
    Lifetime node;
    node.bytes = random() % 9 == 0 ? 0 : 64 * (1 + random() % 40);
    node.alignment = 64;
    node.first = static_cast<std::int64_t>(i);
    node.last = std::min<std::int64_t>(static_cast<std::int64_t>(nodes), node.first + 1 + random() % 8);
    problem.lifetimes.push_back(node);
  }
  return problem;
}

TEST(LetDown, GivesBackTheSamePlanForTheSameSizes) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const PlanProblem problem = random_problem(random, 1 + random() % 80);
    const MemoryPlan known = berth::plan(problem, {.work_limit = 2000}).value();
    const std::vector<std::vector<std::uint32_t>> orders{order_of_offsets(known)};
    const MemoryPlan again = let_down(problem, orders);
    EXPECT_FALSE(validate(problem, again)) << describe(validate(problem, again), problem, again);
    EXPECT_LE(again.size, known.size);
  }
}

TEST(LetDown, IsValidForEverySizeAndAnyOrder) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const std::size_t nodes = random() % 120;
    PlanProblem problem = random_problem(random, nodes);
    const MemoryPlan known = testing::first_fit(problem).value();
    std::vector<std::vector<std::uint32_t>> orders{order_of_offsets(known)};
    for (Lifetime& node : problem.lifetimes) node.bytes = random() % 5000;
    const MemoryPlan other = let_down(problem, orders);
    EXPECT_FALSE(validate(problem, other)) << describe(validate(problem, other), problem, other);
    EXPECT_FALSE(validate(problem, let_down(problem, {})));
  }
}

TEST(LetDown, KeepsAnOptimalPlanOptimalWhenAllSizesGrowAlike) {
  std::mt19937 random(7);
  PlanProblem problem = random_problem(random, 60);
  const MemoryPlan known = berth::plan(problem).value();
  ASSERT_TRUE(known.optimal);
  for (Lifetime& node : problem.lifetimes) node.bytes *= 9;
  const std::vector<std::vector<std::uint32_t>> orders{order_of_offsets(known)};
  EXPECT_EQ(let_down(problem, orders).size, 9 * known.size);
}

}  // namespace
}  // namespace berth::internal::replay
