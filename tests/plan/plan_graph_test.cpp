#include "berth/plan/plan_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "berth/plan/order.h"
#include "support/graph_families.h"
#include "support/seed.h"

namespace berth {
namespace {

using Order = std::vector<std::uint32_t>;

// Two branches: a large value that becomes a small one. Side by side both large values live at once.
MemoryGraph two_branches() {
  MemoryGraph graph;
  graph.values = {{.bytes = 1}, {.bytes = 100}, {.bytes = 100}, {.bytes = 1}, {.bytes = 1}, {.bytes = 1}};
  graph.steps = {{.writes = {0}},
                 {.reads = {0}, .writes = {1}},
                 {.reads = {0}, .writes = {2}},
                 {.reads = {1}, .writes = {3}},
                 {.reads = {2}, .writes = {4}},
                 {.reads = {3, 4}, .writes = {5}}};
  return graph;
}

GraphPlan planned(const MemoryGraph& graph, const GraphOptions& options = {}) {
  const Result<GraphPlan> made = plan_graph(graph, options);
  if (!made) {
    ADD_FAILURE() << made.error().message();
    return {};
  }
  EXPECT_EQ(to_string(validate(graph, *made).rule), "None");
  return *made;
}

TEST(PlanGraph, FinishesOneBranchBeforeTheNext) {
  const GraphPlan made = planned(two_branches());
  EXPECT_EQ(made.given_peak, 201u);
  EXPECT_EQ(made.peak, 102u);
  EXPECT_EQ(made.size, 102u);
  EXPECT_EQ(made.lower_bound, 102u);
  EXPECT_TRUE(made.optimal);
}

TEST(PlanGraph, PlansNothing) {
  const GraphPlan made = planned({});
  EXPECT_EQ(made.size, 0u);
  EXPECT_TRUE(made.optimal);
}

TEST(PlanGraph, TakesOverBytesInTheOrdersThatAllowIt) {
  // Step 1 may write into value 0 only if it runs after step 2, the other reader.
  MemoryGraph graph;
  graph.values = {{.bytes = 100}, {.bytes = 100}, {.bytes = 10}, {.bytes = 1}};
  graph.steps = {{.writes = {0}},
                 {.reads = {0}, .writes = {1}, .in_place = {{1, 0}}},
                 {.reads = {0}, .writes = {2}},
                 {.reads = {1, 2}, .writes = {3}}};
  const GraphPlan made = planned(graph);
  EXPECT_EQ(made.given_peak, 210u);
  EXPECT_EQ(made.size, 111u);
  EXPECT_TRUE(made.optimal);
  EXPECT_EQ(made.order, (Order{0, 2, 1, 3}));
  EXPECT_EQ(made.plan.slots[0].offset, made.plan.slots[1].offset);
}

TEST(PlanGraph, LetsNothingTakeNothingOver) {
  // A value without bytes has no place, to give or to take.
  MemoryGraph graph;
  graph.values = {{.bytes = 100}, {.bytes = 0}, {.bytes = 0}, {.bytes = 50}};
  graph.steps = {{.writes = {0, 2}},
                 {.reads = {0}, .writes = {1}, .in_place = {{1, 0}}},
                 {.reads = {1, 2}, .writes = {3}, .in_place = {{3, 2}}}};
  const GraphPlan made = planned(graph);
  EXPECT_EQ(made.size, 100u);
  for (const Lifetime& life : made.problem.lifetimes) EXPECT_FALSE(life.reuse_in_place);
}

TEST(PlanGraph, LetsAValueLiveAsLongAsItsWindows) {
  MemoryGraph graph;
  graph.values = {{.bytes = 64}, {.bytes = 32, .alias = AliasOf{0, 32}}, {.bytes = 8}, {.bytes = 8}};
  graph.steps = {{.writes = {0}}, {.reads = {0}, .writes = {1, 2}}, {.reads = {1, 2}, .writes = {3}}};
  const GraphPlan made = planned(graph);
  EXPECT_EQ(made.size, 80u);
  EXPECT_EQ(made.plan.slots[1].offset, made.plan.slots[0].offset + 32);
}

TEST(PlanGraph, BeginsAConcatenationWithTheFirstOfItsParts) {
  // Both parts are written into windows of value 0; nothing writes it as a whole.
  MemoryGraph graph;
  graph.values = {{.bytes = 64},
                  {.bytes = 32, .alias = AliasOf{0, 0}},
                  {.bytes = 32, .alias = AliasOf{0, 32}},
                  {.bytes = 500},
                  {.bytes = 8}};
  graph.steps = {{.writes = {1}}, {.writes = {3}}, {.reads = {3}, .writes = {2}}, {.reads = {0}, .writes = {4}}};
  const GraphPlan made = planned(graph);
  // The 500 bytes can be gone before the other part begins, but not before the one that reads them does.
  EXPECT_EQ(made.size, 564u);
  EXPECT_EQ(made.given_peak, 564u);
  EXPECT_EQ(made.order.back(), 3u);
}

TEST(PlanGraph, CountsInputsFromTheBeginningAndOutputsToTheEnd) {
  MemoryGraph graph;
  graph.values = {{.bytes = 10}, {.bytes = 20}, {.bytes = 5}, {.bytes = 7, .keep = true}};
  graph.steps = {{.reads = {0}, .writes = {3}}, {.reads = {1, 3}, .writes = {2}, .scratch = 3}};
  const GraphPlan made = planned(graph);
  EXPECT_EQ(made.peak, 37u);  // 10 + 20 + 7; then 20 + 7 + 5 + 3
  EXPECT_EQ(made.size, 37u);
}

TEST(PlanGraph, RunsACheapStepAgainWhereThatIsSmaller) {
  // A large value is read at the beginning and at the end, and little else is needed to compute it.
  MemoryGraph graph;
  graph.values = {{.bytes = 1, .keep = true}, {.bytes = 100}, {.bytes = 1}, {.bytes = 100}, {.bytes = 1}, {.bytes = 1}};
  graph.steps = {{.writes = {0}},
                 {.reads = {0}, .writes = {1}, .seconds = 0.5},
                 {.reads = {1}, .writes = {2}},
                 {.reads = {2}, .writes = {3}},
                 {.reads = {3}, .writes = {4}},
                 {.reads = {1, 4}, .writes = {5}}};
  EXPECT_EQ(planned(graph).size, 202u);
  const GraphPlan made = planned(graph, {.recompute_seconds = 1});
  EXPECT_EQ(made.order, (Order{0, 1, 2, 3, 4, 1, 5}));
  EXPECT_EQ(made.size, 103u);
  EXPECT_EQ(made.recomputed_seconds, 0.5);
  EXPECT_EQ(planned(graph, {.recompute_seconds = 0.4}).size, 202u);
}

TEST(PlanGraph, RefusesWhatIsNotAGraph) {
  const auto refused = [](const std::function<void(MemoryGraph&)>& change, const GraphOptions& options = {}) {
    MemoryGraph graph = two_branches();
    change(graph);
    const Result<GraphPlan> made = plan_graph(graph, options);
    EXPECT_FALSE(made);
    return made ? Code::kNotFound : made.error().code();
  };
  const auto nothing = [](MemoryGraph&) {};
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[0].after = {5}; }), Code::kCycle);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[1].reads.push_back(1); }), Code::kCycle);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[1].reads = {6}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[1].writes = {6}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[1].after = {6}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[1].writes = {1, 2}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[3].in_place = {{3, 2}}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.steps[1].seconds = -1; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.values[0].alignment = 3; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.alignment = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.values[3].alias = AliasOf{1, 100}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) { graph.values[3].alias = AliasOf{9, 0}; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](MemoryGraph& graph) {
              graph.values[3].alias = AliasOf{4, 0};
              graph.values[4].alias = AliasOf{3, 0};
            }),
            Code::kCycle);
  for (const std::uint64_t bytes : {std::uint64_t{1} << 50, std::numeric_limits<std::uint64_t>::max()}) {
    EXPECT_EQ(refused([&](MemoryGraph& graph) { graph.values[0].bytes = bytes; }), Code::kInvalidArgument);
    EXPECT_EQ(refused([&](MemoryGraph& graph) { graph.steps[0].scratch = bytes; }), Code::kInvalidArgument);
  }
  for (const Order& given : {Order{0}, Order{0, 1, 2, 3, 4, 4}, Order{1, 0, 2, 3, 4, 5}, Order{0, 1, 2, 3, 4, 9}})
    EXPECT_EQ(refused(nothing, {.given = given}), Code::kInvalidArgument);
  EXPECT_EQ(refused(nothing, {.recompute_seconds = -1}), Code::kInvalidArgument);
}

TEST(PlanGraph, IsNotValidAfterAChange) {
  const MemoryGraph graph = two_branches();
  const auto rule = [&](const std::function<void(GraphPlan&)>& change) {
    GraphPlan made = plan_graph(graph).value();
    change(made);
    return to_string(validate(graph, made).rule);
  };
  EXPECT_EQ(rule([](GraphPlan& made) { std::swap(made.order[0], made.order[1]); }), "WrongOrder");
  EXPECT_EQ(rule([](GraphPlan& made) { made.order.pop_back(); }), "WrongOrder");
  EXPECT_EQ(rule([](GraphPlan& made) { made.order.push_back(made.order[2]); }), "MayNotRepeat");
  EXPECT_EQ(rule([](GraphPlan& made) { std::swap(made.order[1], made.order[2]); }), "WrongOrder");
  EXPECT_EQ(rule([](GraphPlan& made) { --made.problem.lifetimes[1].last; }), "WrongNodes");
  EXPECT_EQ(rule([](GraphPlan& made) { ++made.problem.lifetimes[1].last; }), "WrongNodes");
  EXPECT_EQ(rule([](GraphPlan& made) { --made.problem.lifetimes[1].first; }), "WrongNodes");
  EXPECT_EQ(rule([](GraphPlan& made) { ++made.problem.lifetimes[1].first; }), "WrongNodes");
  EXPECT_EQ(rule([](GraphPlan& made) { made.nodes[1].value = 2; }), "WrongNodes");
  EXPECT_EQ(rule([](GraphPlan& made) { made.problem.lifetimes[3].reuse_in_place = 1; }), "WrongNodes");
  EXPECT_EQ(rule([](GraphPlan& made) { made.plan.slots[1].offset += 1; }), "WrongPlan");
  EXPECT_EQ(rule([](GraphPlan& made) { ++made.lower_bound; }), "WrongFigures");
  MemoryGraph other = graph;
  other.steps[1].reads = {9};
  EXPECT_EQ(to_string(validate(other, plan_graph(graph).value()).rule), "InvalidGraph");
}

// A graph of a few steps with everything that a graph can have.
MemoryGraph random_graph(std::uint64_t seed, std::size_t most_steps) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t count) { return random() % count; };
  MemoryGraph graph;
  graph.alignment = below(2) == 0 ? 1 : 8;
  for (std::uint64_t i = below(3); i > 0; --i) graph.values.push_back({.bytes = (1 + below(20)) * 8});
  const std::size_t steps = 1 + below(most_steps);
  for (std::uint32_t step = 0; step < steps; ++step) {
    GraphStep it;
    const auto known = static_cast<std::uint32_t>(graph.values.size());
    for (std::uint64_t i = below(4); i > 0 && known > 0; --i) {
      const auto value = static_cast<std::uint32_t>(below(known));
      if (std::find(it.reads.begin(), it.reads.end(), value) == it.reads.end()) it.reads.push_back(value);
    }
    for (std::uint64_t i = 1 + below(2); i > 0; --i) {
      const auto value = static_cast<std::uint32_t>(graph.values.size());
      GraphValue made{.bytes = (1 + below(20)) * 8, .keep = below(10) == 0};
      if (!it.reads.empty() && below(5) == 0) {  // a window of what it reads
        const std::uint32_t of = it.reads[below(it.reads.size())];
        made.alias = AliasOf{of, 0};
        made.bytes = std::min(made.bytes, graph.values[of].bytes);
      } else if (!it.reads.empty() && below(3) != 0) {
        it.in_place.push_back({value, it.reads[below(it.reads.size())]});
      }
      graph.values.push_back(made);
      it.writes.push_back(value);
    }
    if (below(4) == 0) it.scratch = (1 + below(10)) * 8;
    if (step > 0 && below(8) == 0) it.after.push_back(static_cast<std::uint32_t>(below(step)));
    if (below(2) == 0) it.seconds = 1;
    graph.steps.push_back(std::move(it));
  }
  return graph;
}

// The live bytes of every order, through lifetimes that this test works out itself.
std::uint64_t peak_of(const MemoryGraph& graph, const Order& order) {
  const std::size_t count = graph.values.size();
  std::vector<std::uint32_t> root(count);
  std::vector<std::size_t> first(count, order.size()), last(count, 0), position(order.size());
  std::vector<bool> kept(count, false), read(count, false), written(count, false);
  for (std::uint32_t value = 0; value < count; ++value)
    root[value] = graph.values[value].alias ? root[graph.values[value].alias->node] : value;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const GraphStep& step = graph.steps[order[at]];
    position[order[at]] = at;
    for (const std::uint32_t value : step.reads) {
      read[root[value]] = true;
      last[root[value]] = at;
    }
    for (const std::uint32_t value : step.writes) {
      last[root[value]] = at;
      const bool view = std::any_of(step.reads.begin(), step.reads.end(),
                                    [&](std::uint32_t other) { return root[other] == root[value]; });
      if (view) continue;
      if (!written[root[value]]) first[root[value]] = at;
      written[root[value]] = true;
    }
  }
  for (std::uint32_t value = 0; value < count; ++value)
    if (graph.values[value].keep) kept[root[value]] = true;
  std::uint64_t most = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const GraphStep& step = graph.steps[order[at]];
    std::uint64_t live = step.scratch;
    for (std::uint32_t value = 0; value < count; ++value) {
      if (root[value] != value) continue;
      const bool begun = !written[value] || first[value] <= at;
      if (begun && (kept[value] || !read[value] || last[value] >= at)) live += graph.values[value].bytes;
    }
    // The largest that may take over each value that ends here.
    std::vector<std::uint64_t> saved(count, 0);
    for (const InPlace& pair : step.in_place) {
      const std::uint32_t donor = root[pair.read];
      if (graph.values[pair.write].alias || kept[donor] || last[donor] != at) continue;
      if (graph.values[pair.write].bytes > graph.values[pair.read].bytes) continue;
      if (first[pair.write] != at) continue;
      saved[donor] = std::max(saved[donor], graph.values[pair.write].bytes);
    }
    most = std::max(most, live - std::accumulate(saved.begin(), saved.end(), std::uint64_t{0}));
  }
  return most;
}

bool is_order(const MemoryGraph& graph, const Order& order) {
  std::vector<bool> ran(graph.steps.size(), false), written(graph.values.size(), true);
  for (const GraphStep& step : graph.steps)
    for (const std::uint32_t value : step.writes) written[value] = false;
  for (const std::uint32_t step : order) {
    for (const std::uint32_t value : graph.steps[step].reads)
      if (!written[value]) return false;
    for (const std::uint32_t other : graph.steps[step].after)
      if (!ran[other]) return false;
    ran[step] = true;
    for (const std::uint32_t value : graph.steps[step].writes) written[value] = true;
  }
  return true;
}

TEST(PlanGraph, HasTheLowestPeakOfAllOrdersOfASmallGraph) {
  int proven = 0, count = 0;
  for (const std::uint32_t seed : test::seeds(300)) {
    SCOPED_TRACE(seed);
    const MemoryGraph graph = random_graph(seed, 7);
    Order order(graph.steps.size());
    std::iota(order.begin(), order.end(), 0u);
    std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
    do {
      if (is_order(graph, order)) best = std::min(best, peak_of(graph, order));
    } while (std::next_permutation(order.begin(), order.end()));
    const GraphPlan made = planned(graph, {.plan = {.work_limit = 20'000, .threads = 1}});
    EXPECT_EQ(made.lower_bound, best);
    EXPECT_GE(made.size, best);
    if (made.peak == best) {
      EXPECT_EQ(peak_of(graph, made.order), best);
    }
    ++count;
    proven += made.optimal ? 1 : 0;
  }
  EXPECT_GT(proven, count / 2);
}

TEST(PlanGraph, IsNeverAboveTheSeparateStepsNorBelowItsBound) {
  for (const std::uint32_t seed : test::seeds(12)) {
    SCOPED_TRACE(seed);
    const MemoryGraph graph = seed % 3 == 0   ? random_graph(seed, 80)
                              : seed % 3 == 1 ? bench::darts_graph(seed)
                                              : bench::randwire_graph(seed);
    const PlanOptions options{.work_limit = 5'000, .threads = 1};
    const GraphPlan made = planned(graph, {.order_work = 300'000, .plan = options});
    EXPECT_LE(made.peak, made.given_peak);
    EXPECT_GE(made.size, made.lower_bound);
    // The given order alone, planned with the same options.
    const GraphPlan fixed = planned(graph, {.order_work = 0, .plan = options});
    EXPECT_LE(made.size, fixed.size);
  }
}

TEST(PlanGraph, GivesTheSameResultAgain) {
  const MemoryGraph graph = bench::darts_graph(test::seed());
  const GraphOptions options{.order_work = 200'000, .plan = {.work_limit = 5'000}};
  const GraphPlan one = planned(graph, options), other = planned(graph, options);
  EXPECT_EQ(one.order, other.order);
  EXPECT_EQ(one.plan.slots, other.plan.slots);
  EXPECT_EQ(one.lower_bound, other.lower_bound);
}

TEST(PlanGraph, StaysValidWhenStepsRunAgain) {
  for (const std::uint32_t seed : test::seeds(30)) {
    SCOPED_TRACE(seed);
    const MemoryGraph graph = random_graph(seed, 40);
    const PlanOptions options{.work_limit = 2'000, .threads = 1};
    const GraphPlan once = planned(graph, {.order_work = 50'000, .plan = options});
    const GraphPlan again = planned(graph, {.recompute_seconds = 5, .order_work = 50'000, .plan = options});
    EXPECT_LE(again.size, once.size);
    EXPECT_LE(again.recomputed_seconds, 5);
  }
}

TEST(PlanGraph, StopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  const MemoryGraph graph = bench::randwire_graph(test::seed());
  PlanOptions options;
  options.cancel = stop.get_token();
  EXPECT_LT(planned(graph, {.plan = options}).order_work, 200'000u);
}

}  // namespace
}  // namespace berth
