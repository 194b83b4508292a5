// plan_graph(): orders from order_for_memory() and the search, a plan for the best of them.
#include "berth/plan/plan_graph.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/try.h"
#include "berth/plan/order.h"
#include "plan/graph/improve_order.h"
#include "plan/graph/lifetimes.h"
#include "plan/graph/order_search.h"
#include "plan/graph/recompute.h"
#include "plan/graph/step_graph.h"

namespace berth {

using namespace internal;
using namespace internal::graphs;

namespace {

using Clock = std::chrono::steady_clock;
using Order = std::vector<std::uint32_t>;

// The graph as order_for_memory() takes it: one value for each step, inputs left out.
OrderGraph order_graph_of(const StepGraph& graph) {
  OrderGraph out;
  out.nodes.resize(graph.steps);
  for (std::uint32_t step = 0; step < graph.steps; ++step) {
    OrderNode& node = out.nodes[step];
    node.scratch = graph.scratch[step];
    for (const std::uint32_t value : graph.writes[step]) {
      node.bytes += graph.stored[value].bytes;
      node.keep = node.keep || graph.stored[value].kept;
      for (const std::uint32_t user : graph.users[value])
        if (user != step && graph.writers[value].size() == 1) out.edges.push_back({step, user});
    }
    for (const std::uint32_t other : graph.before[step]) out.edges.push_back({other, step});
  }
  return out;
}

class Planning {
 public:
  Planning(const MemoryGraph& graph, const GraphOptions& options)
      : graph_(graph), options_(options), begin_(Clock::now()) {
    budget_.work = options.order_work;
    budget_.stop = [this] {
      return options_.plan.cancel.stop_requested() ||
             (options_.plan.time_limit && seconds() > 0.5 * *options_.plan.time_limit);
    };
  }

  Result<GraphPlan> run() {
    if (!(options_.recompute_seconds >= 0 && options_.recompute_seconds < 1e18))
      return Error(Code::kInvalidArgument, Layer::kPlan,
                   "the time for running steps again is negative or not finite; give 0 or more seconds");
    BERTH_TRY_ASSIGN(checked_, check_graph(graph_));
    const StepGraph& steps = checked_.steps;
    BERTH_TRY_ASSIGN(Order first, first_order(steps));
    if (!options_.given.empty()) {
      BERTH_TRY(check_order(steps, options_.given));
      first.assign(options_.given.begin(), options_.given.end());
    }
    std::vector<Order> known = {std::move(first)};
    const std::uint64_t given_peak = peak_of(steps, known[0]);
    if (given_peak > order_bound(steps)) {
      // Its graph is a simplification of this one, so it may say that there is no way: then the given order is enough.
      if (Result<MemoryOrder> found = order_for_memory(order_graph_of(steps), {.given = known[0]}))
        known.push_back(std::move(found->order));
    }
    const ImprovedOrder improved = improve_order(steps, known, budget_);
    bound_ = improved.bound - std::min(improved.bound, checked_.slack);
    for (const GraphValue& value : graph_.values)
      if (!value.alias) bound_ = std::max(bound_, value.bytes);

    BERTH_TRY(place(improved.order));
    for (const Order& other : known) {
      if (best_.size <= bound_) break;
      const std::uint64_t peak = peak_of(steps, other);
      if (other == improved.order || peak - std::min(peak, checked_.slack) >= best_.size) continue;
      BERTH_TRY(place(other));
    }
    if (options_.recompute_seconds > 0) BERTH_TRY(run_again());
    best_.given_peak = given_peak;
    best_.lower_bound = bound_;
    best_.optimal = best_.size <= bound_;
    best_.order_work = options_.order_work - budget_.work;
    best_.seconds = seconds();
    return std::move(best_);
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  // Keeps the plan of this order if it is the smallest.
  Result<void> place(const Order& order) {
    GraphPlan made;
    OrderedProblem ordered = problem_of(graph_, checked_, order);
    made.problem = std::move(ordered.problem);
    made.nodes = std::move(ordered.nodes);
    made.order = order;
    made.peak = peak_of(checked_.steps, order);
    return keep_smaller(std::move(made));
  }

  Result<void> keep_smaller(GraphPlan made) {
    PlanOptions options = options_.plan;
    if (options.time_limit) options.time_limit = std::max(0.0, *options.time_limit - seconds()) / 2;
    BERTH_TRY_ASSIGN(made.plan, plan(made.problem, options));
    made.size = made.plan.size;
    if (best_.problem.lifetimes.empty() || made.size < best_.size) best_ = std::move(made);
    return {};
  }

  Result<void> run_again() {
    budget_.work = std::max<std::uint64_t>(budget_.work, options_.order_work / 2);
    const Expanded expanded = recompute(graph_, best_.order, options_.recompute_seconds, budget_);
    if (expanded.seconds == 0 && expanded.order.size() == best_.order.size()) return {};
    BERTH_TRY_ASSIGN(const CheckedGraph checked, check_graph(expanded.graph));
    OrderedProblem ordered = problem_of(expanded.graph, checked, expanded.order);
    GraphPlan made;
    made.problem = std::move(ordered.problem);
    made.nodes = std::move(ordered.nodes);
    for (GraphNode& node : made.nodes)
      if (node.value != kNoNode) node.value = expanded.value_of[node.value];
    for (const std::uint32_t step : expanded.order) made.order.push_back(expanded.step_of[step]);
    made.peak = peak_of(checked.steps, expanded.order);
    made.recomputed_seconds = expanded.seconds;
    return keep_smaller(std::move(made));
  }

  const MemoryGraph& graph_;
  const GraphOptions& options_;
  const Clock::time_point begin_;
  SearchBudget budget_;
  CheckedGraph checked_;
  std::uint64_t bound_ = 0;
  GraphPlan best_;
};

}  // namespace

Result<GraphPlan> plan_graph(const MemoryGraph& graph, const GraphOptions& options) {
  return Planning(graph, options).run();
}

}  // namespace berth
