// Random planning problems, and what must be true of any plan for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "berth/plan/plan.h"

namespace berth::test {

// Whether two slots share a byte of one block.
inline bool share_bytes(const Slot& a, const Slot& b) {
  return a.block == b.block && a.block != kNoBlock && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// Quadratic on purpose, and for plain lifetimes only: no aliases, gaps or in-place reuse.
inline void expect_disjoint(const PlanProblem& problem, const MemoryPlan& plan) {
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

inline PlanProblem random_problem(std::size_t count, std::uint64_t seed, std::int64_t levels = 40) {
  std::mt19937_64 random(seed);
  PlanProblem problem;
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(levels));
    const auto length = 1 + static_cast<std::int64_t>(random() % 12);
    problem.lifetimes.push_back({.bytes = 1 + random() % 64, .first = first, .last = first + length});
  }
  return problem;
}

inline std::uint64_t live_load(const PlanProblem& problem) {
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

}  // namespace berth::test
