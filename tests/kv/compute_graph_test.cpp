#include "kv/compute_graph.h"

#include <gtest/gtest.h>

namespace berth::internal::fit {
namespace {

constexpr ComputeGraph::Id kWeights = ComputeGraph::kExternal;

Shape row(std::uint64_t elements) {
  return {elements, 1, 1, 1};
}

TEST(ComputeGraph, GivesMemoryOfWhatIsNotNeededAnyMore) {
  ComputeGraph graph;
  const auto a = graph.make(row(100), {graph.input(row(8))});
  const auto b = graph.make(row(100), {a});
  const auto c = graph.make(row(100), {b});
  graph.keep(c);
  graph.expand(c);
  // Two of the three at once. The input is 32 bytes, and each tensor is rounded up to 32 bytes.
  EXPECT_EQ(graph.reserved_bytes(), 32u + 2 * 416);
}

TEST(ComputeGraph, WorksInPlaceWhereNothingElseNeedsTheArgument) {
  ComputeGraph graph;
  const auto a = graph.make(row(64), {graph.input(row(8))});
  const auto b = graph.in_place(row(64), {a, kWeights});
  graph.keep(b);
  graph.expand(b);
  EXPECT_EQ(graph.reserved_bytes(), 32u + 256);

  ComputeGraph other;
  const auto x = other.make(row(64), {other.input(row(8))});
  const auto y = other.in_place(row(64), {x});
  const auto z = other.in_place(row(64), {y, x});  // x is needed after y
  other.keep(z);
  other.expand(z);
  EXPECT_EQ(other.reserved_bytes(), 32u + 2 * 256);
}

TEST(ComputeGraph, GivesMemoryThatWasTakenOverBackOnce) {
  ComputeGraph graph;
  const auto a = graph.make(row(64), {graph.input(row(8))});
  const auto b = graph.in_place(row(64), {a});
  const auto c = graph.make(row(64), {b});
  const auto d = graph.make(row(64), {c});
  graph.keep(d);
  graph.expand(d);
  EXPECT_EQ(graph.reserved_bytes(), 32u + 2 * 256);
  const PlanProblem problem = graph.problem();
  ASSERT_EQ(problem.lifetimes.size(), 4u) << "b is where a is";
  EXPECT_EQ(problem.lifetimes[0].last, 1) << "the input, which a alone reads";
  EXPECT_EQ(problem.lifetimes[1].last, 3) << "a and then b, which c reads";
}

TEST(ComputeGraph, GivesNoMemoryAwayThroughAView) {
  ComputeGraph graph;
  const auto a = graph.make(row(64), {graph.input(row(8))});
  const auto b = graph.in_place({8, 8, 1, 1}, {graph.view(a, {8, 8, 1, 1})});
  graph.keep(b);
  graph.expand(b);
  EXPECT_EQ(graph.reserved_bytes(), 32u + 2 * 256);
}

TEST(ComputeGraph, KeepsWhatIsWrittenIntoAndNeverUsed) {
  ComputeGraph graph;
  const auto target = graph.make(row(64), {graph.input(row(8))});
  const auto rows = graph.make(row(64), {graph.input(row(8))});
  graph.expand(graph.write_into(target, {rows}));
  const auto next = graph.make(row(64), {graph.input(row(8))});
  graph.keep(next);
  graph.expand(next);
  // `next` takes the place of `rows`; `target` has no reader that could end it.
  EXPECT_EQ(graph.reserved_bytes(), 3u * 32 + 2 * 256);

  ComputeGraph other;
  const auto used = other.make(row(64), {other.input(row(8))});
  const auto written = other.write_into(used, {other.make(row(64), {other.input(row(8))})});
  const auto after = other.make(row(64), {written});
  const auto last = other.make(row(64), {after});
  other.keep(last);
  other.expand(last);
  EXPECT_EQ(other.reserved_bytes(), 2u * 32 + 2 * 256);
}

TEST(ComputeGraph, TakesTheSmallestHoleThatFits) {
  ComputeGraph graph;
  const auto start = graph.input(row(8));
  const auto large = graph.make(row(256), {start});
  const auto wall = graph.make(row(8), {large, start});
  const auto small = graph.make(row(64), {wall, start});
  const auto guard = graph.make(row(8), {small, large});
  // `large` and `small` are holes now. The next fits into both, and the one after it only into the larger.
  const auto next = graph.make(row(64), {guard, start});
  const auto last = graph.make(row(256), {next, guard, wall, start});
  graph.keep(last);
  graph.expand(last);
  EXPECT_EQ(graph.reserved_bytes(), 32u + 1024 + 32 + 256 + 32);
  const PlanProblem problem = graph.problem();
  EXPECT_EQ(problem.lifetimes.size(), 7u);
  EXPECT_LE(plan_lower_bound(problem).value(), graph.reserved_bytes());
  EXPECT_GE(plan_lower_bound(problem).value(), 32u + 1024 + 32 + 256);
}

TEST(ComputeGraph, StopsAtTheMostThatCanBeCounted) {
  EXPECT_EQ(multiply(kMostBytes, 2), kMostBytes);
  EXPECT_EQ(multiply(std::uint64_t{1} << 40, std::uint64_t{1} << 40), kMostBytes);
  EXPECT_EQ(multiply(0, kMostBytes), 0u);
  EXPECT_EQ(add(kMostBytes - 1, 1), kMostBytes);
  EXPECT_EQ(add(kMostBytes, kMostBytes), kMostBytes);
  EXPECT_EQ(pad(kMostBytes, 256), kMostBytes);
  EXPECT_EQ(pad(257, 256), 512u);
  ComputeGraph graph;
  const std::uint64_t huge = std::uint64_t{1} << 32;
  const auto a = graph.make({huge, huge, huge, huge}, {graph.input({huge, huge, huge, 1})});
  graph.keep(a);
  graph.expand(a);
  EXPECT_EQ(graph.reserved_bytes(), kMostBytes);
}

}  // namespace
}  // namespace berth::internal::fit
