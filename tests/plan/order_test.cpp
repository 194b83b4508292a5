#include "berth/plan/order.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace berth {
namespace {

using Order = std::vector<std::uint32_t>;

TEST(OrderForMemory, FinishesOneBranchBeforeTheNext) {
  // Two branches: a large value that becomes a small one. Side by side both large values live at once.
  OrderGraph graph;
  graph.nodes = {{.bytes = 1}, {.bytes = 100}, {.bytes = 100}, {.bytes = 1}, {.bytes = 1}, {.bytes = 1}};
  graph.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 5}};
  const MemoryOrder found = order_for_memory(graph).value();
  EXPECT_EQ(found.given_peak, 201u);
  EXPECT_EQ(found.peak, 102u);
  EXPECT_TRUE(found.optimal);
  EXPECT_EQ(order_peak(graph, found.order).value(), found.peak);
}

TEST(OrderForMemory, CountsScratchAndWhatIsKept) {
  OrderGraph graph;
  graph.nodes = {{.bytes = 10, .keep = true}, {.bytes = 5, .scratch = 50}, {.bytes = 1}};
  graph.edges = {{0, 1}, {1, 2}};
  EXPECT_EQ(order_peak(graph, Order{0, 1, 2}).value(), 65u);
  EXPECT_EQ(order_for_memory(graph).value().peak, 65u);
  const auto lives = lifetimes_of(graph, Order{0, 1, 2}).value();
  ASSERT_EQ(lives.size(), 4u);
  EXPECT_EQ(lives[0].last, 3);
  EXPECT_EQ(lives[1].last, 3);
  EXPECT_EQ(lives[2].last, 3);
  EXPECT_EQ(lives[3].bytes, 50u);
  EXPECT_EQ(lives[3].first, 1);
  EXPECT_EQ(lives[3].last, 2);
}

TEST(OrderForMemory, TakesTheGivenOrderAsTheOneToImproveOn) {
  OrderGraph graph;
  graph.nodes = {{.bytes = 1}, {.bytes = 2}, {.bytes = 3}};
  const Order given = {2, 0, 1};
  const MemoryOrder found = order_for_memory(graph, {.given = given}).value();
  EXPECT_EQ(found.order, given);
  EXPECT_EQ(found.peak, 6u);
}

TEST(OrderForMemory, OrdersNothing) {
  const MemoryOrder found = order_for_memory({}).value();
  EXPECT_TRUE(found.order.empty());
  EXPECT_EQ(found.peak, 0u);
  EXPECT_TRUE(found.optimal);
}

TEST(OrderForMemory, ReadsEachValueOnceHoweverOftenTheEdgeIsThere) {
  OrderGraph graph;
  graph.nodes = {{.bytes = 8}, {.bytes = 1}, {.bytes = 1}};
  graph.edges = {{0, 1}, {0, 1}, {1, 2}};
  EXPECT_EQ(order_peak(graph, Order{0, 1, 2}).value(), 9u);
}

TEST(OrderForMemory, RefusesACycle) {
  OrderGraph graph;
  graph.nodes.resize(3);
  graph.edges = {{0, 1}, {1, 2}, {2, 1}};
  EXPECT_EQ(order_for_memory(graph).error().code(), Code::kCycle);
  EXPECT_EQ(order_peak(graph, Order{0, 1, 2}).error().code(), Code::kCycle);
}

TEST(OrderForMemory, RefusesWhatIsNotAGraphOrNotAnOrderOfIt) {
  OrderGraph graph;
  graph.nodes.resize(2);
  for (const OrderEdge outside : {OrderEdge{0, 2}, OrderEdge{2, 0}, OrderEdge{2, 2}, OrderEdge{7, 1}}) {
    graph.edges = {outside};
    const auto refused = order_for_memory(graph);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.error().message().find("leaves the graph's 2 nodes"), std::string::npos)
        << refused.error().message();
  }
  graph.edges = {{0, 1}};
  for (const Order& given : {Order{0}, Order{0, 0}, Order{0, 2}, Order{1, 0}}) {
    EXPECT_EQ(order_for_memory(graph, {.given = given}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(order_peak(graph, given).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(lifetimes_of(graph, given).error().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(order_for_memory(graph, {.given = Order{1, 0}}).error().message(),
            "the order runs node 1 before node 0, which it reads");
  graph.nodes = {{.bytes = std::uint64_t{1} << 62}, {.bytes = 1}};
  EXPECT_EQ(order_for_memory(graph).error().code(), Code::kInvalidArgument);
}

TEST(OrderForMemory, LeavesWhatThePlannerThenReaches) {
  OrderGraph graph;
  graph.nodes = {{.bytes = 64}, {.bytes = 640}, {.bytes = 640}, {.bytes = 64}, {.bytes = 64}, {.bytes = 64}};
  graph.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 5}};
  const MemoryOrder found = order_for_memory(graph).value();
  PlanProblem problem;
  problem.lifetimes = lifetimes_of(graph, found.order).value();
  EXPECT_EQ(plan_lower_bound(problem).value(), found.peak);
}

OrderGraph random_graph(std::size_t count, std::uint64_t seed, double density) {
  const auto next = [&seed] { return (seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 33; };
  OrderGraph graph;
  for (std::size_t i = 0; i < count; ++i)
    graph.nodes.push_back(
        {.bytes = next() % 100, .scratch = next() % 4 == 0 ? next() % 50 : 0, .keep = next() % 10 == 0});
  for (std::uint32_t to = 1; to < count; ++to)
    for (std::uint32_t from = to > 12 ? to - 12 : 0; from < to; ++from)
      if (static_cast<double>(next() % 1000) < density * 1000) graph.edges.push_back({from, to});
  return graph;
}

// Every order of a small graph.
std::uint64_t best_peak(const OrderGraph& graph) {
  Order order(graph.nodes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::uint64_t best = ~std::uint64_t{0};
  do {
    if (const auto peak = order_peak(graph, order)) best = std::min(best, *peak);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

RC_GTEST_PROP(OrderForMemoryProperty, IsAsGoodAsTheBestOfAllOrders, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(1, 8);
  const OrderGraph graph =
      random_graph(count, *rc::gen::arbitrary<std::uint64_t>(), *rc::gen::element(0.1, 0.25, 0.4, 0.7));
  const MemoryOrder found = order_for_memory(graph).value();
  RC_ASSERT(found.peak == best_peak(graph));
  RC_ASSERT(found.optimal);
  RC_ASSERT(found.lower_bound == found.peak);
  RC_ASSERT(order_peak(graph, found.order).value() == found.peak);
}

RC_GTEST_PROP(OrderForMemoryProperty, IsNeverWorseThanTheOrderGivenNorBelowItsBound, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(1, 150);
  const OrderGraph graph =
      random_graph(count, *rc::gen::arbitrary<std::uint64_t>(), *rc::gen::element(0.03, 0.1, 0.25));
  const MemoryOrder found = order_for_memory(graph, {.work_limit = 500}).value();
  Order by_index(count);
  std::iota(by_index.begin(), by_index.end(), 0u);
  RC_ASSERT(found.given_peak == order_peak(graph, by_index).value());
  RC_ASSERT(found.peak <= found.given_peak);
  RC_ASSERT(found.lower_bound <= found.peak);
  RC_ASSERT(found.optimal == (found.lower_bound == found.peak));
  RC_ASSERT(order_peak(graph, found.order).value() == found.peak);
}

TEST(OrderForMemory, ProvesAChainOfManySmallParts) {
  // 2,000 diamonds in a row: each part is exact, so the whole is.
  OrderGraph graph;
  graph.nodes.push_back({.bytes = 1});
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const auto at = static_cast<std::uint32_t>(graph.nodes.size());
    for (const std::uint64_t bytes : {100, 100, 1, 1, 1}) graph.nodes.push_back({.bytes = bytes});
    for (const OrderEdge edge :
         {OrderEdge{at - 1, at}, {at - 1, at + 1}, {at, at + 2}, {at + 1, at + 3}, {at + 2, at + 4}, {at + 3, at + 4}})
      graph.edges.push_back(edge);
  }
  const MemoryOrder found = order_for_memory(graph).value();
  EXPECT_EQ(found.given_peak, 201u);
  EXPECT_EQ(found.peak, 102u);
  EXPECT_TRUE(found.optimal);
}

TEST(OrderForMemory, UntanglesManyBranchesInterleavedByIndex) {
  // 500 branches of three steps from one source to one sink, written level by level: all large values live at once.
  constexpr std::uint32_t kBranches = 500;
  OrderGraph graph;
  graph.nodes.push_back({.bytes = 1});
  for (const std::uint64_t bytes : {1000, 500, 1})
    for (std::uint32_t i = 0; i < kBranches; ++i) graph.nodes.push_back({.bytes = bytes});
  graph.nodes.push_back({.bytes = 1});
  for (std::uint32_t i = 1; i <= kBranches; ++i) {
    graph.edges.push_back({0, i});
    graph.edges.push_back({i, i + kBranches});
    graph.edges.push_back({i + kBranches, i + 2 * kBranches});
    graph.edges.push_back({i + 2 * kBranches, 3 * kBranches + 1});
  }
  const MemoryOrder found = order_for_memory(graph).value();
  EXPECT_EQ(found.given_peak, 1000u * kBranches + 500u);
  EXPECT_EQ(found.peak, 1500u + kBranches - 1 + 0u);
}

TEST(OrderForMemory, GivesTheSameOrderEveryTime) {
  const OrderGraph graph = random_graph(400, 9, 0.1);
  EXPECT_EQ(order_for_memory(graph, {.work_limit = 2000}).value().order,
            order_for_memory(graph, {.work_limit = 2000}).value().order);
}

TEST(OrderForMemory, TakesLinearTimeWhenAllReadOneValueAndOneReadsAll) {
  // A hub of 50,000 readers and a sink that reads them all: a rule that asked each reader about the others would never
  // end.
  constexpr std::uint32_t kCount = 50000;
  OrderGraph graph;
  graph.nodes.assign(kCount + 2, {.bytes = 4});
  for (std::uint32_t i = 1; i <= kCount; ++i) {
    graph.edges.push_back({0, i});
    graph.edges.push_back({i, kCount + 1});
  }
  const MemoryOrder found = order_for_memory(graph).value();
  EXPECT_EQ(found.peak, 4u * (kCount + 1));
}

TEST(OrderForMemory, HandlesALargeGraph) {
  const OrderGraph graph = random_graph(20000, 5, 0.12);
  const MemoryOrder found = order_for_memory(graph).value();
  EXPECT_LT(found.peak, found.given_peak);
  EXPECT_EQ(order_peak(graph, found.order).value(), found.peak);
}

}  // namespace
}  // namespace berth
