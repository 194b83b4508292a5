#include "run/hazards.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "support/seed.h"

namespace berth {

using namespace internal;

namespace {

struct Steps {
  std::vector<Touch> touches;
  std::vector<std::uint32_t> first{0};

  void add(std::vector<Touch> list) {
    touches.insert(touches.end(), list.begin(), list.end());
    first.push_back(static_cast<std::uint32_t>(touches.size()));
  }
  std::uint32_t count() const { return static_cast<std::uint32_t>(first.size() - 1); }
  Hazards find(std::vector<Edge> after = {}) const {
    std::vector<std::uint32_t> order(count());
    std::iota(order.begin(), order.end(), 0u);
    return find_hazards(touches, first, order, after);
  }
  bool conflicts(std::uint32_t a, std::uint32_t b) const {
    for (std::uint32_t i = first[a]; i < first[a + 1]; ++i)
      for (std::uint32_t j = first[b]; j < first[b + 1]; ++j)
        if (conflict(touches[i], touches[j])) return true;
    return false;
  }
};

Touch read(std::uint64_t begin, std::uint64_t end, std::uint64_t storage = 1) {
  return {.storage = storage, .begin = begin, .end = end};
}
Touch write(std::uint64_t begin, std::uint64_t end, std::uint64_t storage = 1) {
  return {.storage = storage, .begin = begin, .end = end, .writes = true};
}

using Pairs = std::set<std::pair<std::uint32_t, std::uint32_t>>;

// Direct dependencies between steps, seen through joins.
Pairs direct(const Hazards& hazards, std::uint32_t steps) {
  std::vector<std::set<std::uint32_t>> before(hazards.node_count);
  // Joins wait for lower numbers, or for steps, and steps may wait for joins: repeat until nothing changes.
  bool changed = true;
  while (changed) {
    changed = false;
    for (const Edge& edge : hazards.edges) {
      const std::size_t size = before[edge.to].size();
      if (edge.from < steps)
        before[edge.to].insert(edge.from);
      else
        before[edge.to].insert(before[edge.from].begin(), before[edge.from].end());
      changed = changed || before[edge.to].size() != size;
    }
  }
  Pairs pairs;
  for (std::uint32_t step = 0; step < steps; ++step)
    for (const std::uint32_t other : before[step]) pairs.insert({other, step});
  return pairs;
}

Pairs reachable(const Pairs& edges, std::uint32_t steps) {
  std::vector<std::vector<bool>> reach(steps, std::vector<bool>(steps, false));
  for (const auto& [from, to] : edges) reach[from][to] = true;
  for (std::uint32_t k = 0; k < steps; ++k)
    for (std::uint32_t i = 0; i < steps; ++i)
      if (reach[i][k])
        for (std::uint32_t j = 0; j < steps; ++j)
          if (reach[k][j]) reach[i][j] = true;
  Pairs pairs;
  for (std::uint32_t i = 0; i < steps; ++i)
    for (std::uint32_t j = 0; j < steps; ++j)
      if (reach[i][j]) pairs.insert({i, j});
  return pairs;
}

TEST(Hazards, OrdersReadersAfterWritersAndWritersAfterReaders) {
  Steps steps;
  steps.add({write(0, 8)});
  steps.add({read(0, 8)});
  steps.add({read(4, 8)});
  steps.add({write(0, 4)});
  EXPECT_EQ(direct(steps.find(), 4), (Pairs{{0, 1}, {0, 2}, {1, 3}}));
}

TEST(Hazards, NeverOrdersDisjointWindowsOfOneStorage) {
  Steps steps;
  for (std::uint64_t i = 0; i < 10; ++i) steps.add({write(i * 8, i * 8 + 8)});
  steps.add({write(0, 8, 2)});
  EXPECT_TRUE(steps.find().edges.empty());
}

TEST(Hazards, IgnoresEmptyWindowsAndAStepsOwnOverlaps) {
  Steps steps;
  steps.add({write(0, 8), write(4, 12), read(0, 12), read(0, 12)});
  steps.add({write(5, 5), read(3, 3)});
  steps.add({read(0, 12), write(2, 6)});
  EXPECT_EQ(direct(steps.find(), 3), (Pairs{{0, 2}}));
}

TEST(Hazards, OrdersExactlyWhatConflictsOnRandomAccesses) {
  for (const unsigned seed : test::seeds(300)) {
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    const std::uint32_t count = 2 + pick(40), width = 1 + pick(30), storages = 1 + pick(2);
    Steps steps;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::vector<Touch> touches(pick(4));
      for (Touch& touch : touches) {
        touch.begin = pick(width);
        touch.end = touch.begin + pick(width - static_cast<std::uint32_t>(touch.begin) + 1);
        touch.storage = pick(storages);
        touch.writes = pick(3) == 0;
      }
      steps.add(touches);
    }
    const Pairs edges = direct(steps.find(), count);
    const Pairs reach = reachable(edges, count);
    for (std::uint32_t a = 0; a < count; ++a)
      for (std::uint32_t b = a + 1; b < count; ++b)
        ASSERT_TRUE(!steps.conflicts(a, b) || reach.contains({a, b})) << "seed " << seed << ": " << a << " " << b;
    for (const auto& [from, to] : edges) {
      ASSERT_LT(from, to);
      ASSERT_TRUE(steps.conflicts(from, to)) << "seed " << seed << ": a false dependency of " << to << " on " << from;
    }
  }
}

TEST(Hazards, KeepsManyReadersOfManyWritersNearLinear) {
  const std::uint32_t n = 2000;
  Steps steps;
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < n; ++i) steps.add({write(i * 4, i * 4 + 4)});
    for (std::uint32_t i = 0; i < n; ++i) steps.add({read(0, n * 4)});
  }
  // Readers x writers would be 12 million a round.
  const Hazards hazards = steps.find();
  EXPECT_LT(hazards.edges.size(), 3u * 2u * n * 5u);
  EXPECT_LT(hazards.node_count, 3u * 2u * n * 3u);
}

TEST(Hazards, KeepsRandomWindowsNearLinear) {
  const std::uint32_t n = 20000;
  std::mt19937 random(1);
  Steps steps;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint64_t begin = random() % n, end = begin + 1 + random() % n;
    steps.add({random() % 2 == 0 ? read(begin, end) : write(begin, end)});
  }
  EXPECT_LT(steps.find().edges.size(), std::size_t{n} * 16);
}

TEST(Hazards, NeedsNoJoinWhenStepsUseWholeBuffers) {
  Steps steps;
  for (std::uint64_t i = 0; i < 100; ++i) steps.add({write(0, 64, i)});
  for (std::uint64_t i = 0; i < 100; ++i)
    steps.add({read(0, 64, i), read(0, 64, (i * 7) % 100), write(0, 64, 100 + i)});
  EXPECT_EQ(steps.find().node_count, 200u);
}

TEST(Hazards, ListsAGivenDependencyOnceWithThoseItFinds) {
  Steps steps;
  steps.add({write(0, 8)});
  steps.add({read(0, 8)});
  EXPECT_EQ(steps.find({{0, 1}, {0, 1}}).edges.size(), 1u);
}

TEST(Hazards, TellsWhichReadsSeeBytesThatNoStepWrote) {
  Steps steps;
  steps.add({write(0, 8)});
  steps.add({read(0, 8), read(4, 12)});
  steps.add({write(8, 12)});
  steps.add({read(0, 12)});
  EXPECT_EQ(steps.find().reads_before_written, (std::vector<bool>{false, false, true, false, false}));
}

TEST(Hazards, FindsAValueThatIsReadAfterAnotherTookItsBytes) {
  Steps steps;
  const auto as = [](Touch touch, std::uint32_t value) {
    touch.value = value;
    return touch;
  };
  steps.add({as(write(0, 16), 7)});
  steps.add({as(write(4, 8), 8)});
  steps.add({as(read(8, 16), 7)});
  EXPECT_FALSE(steps.find().clobbered) << "the bytes read are still its own";
  steps.add({as(read(0, 16), 7)});
  ASSERT_TRUE(steps.find().clobbered);
  EXPECT_EQ(steps.find().clobbered->step, 3u);
  EXPECT_EQ(steps.find().clobbered->value, 7u);
}

}  // namespace
}  // namespace berth
