// Order and place together. A MemoryGraph says what each step of a program reads and writes, but not when it runs:
// plan_graph() chooses an order of the steps and a placement of the values, so that the whole needs as few bytes as it
// can find. Its lower bound holds for every order and every placement, so a result can be proven, and otherwise the gap
// is known. order.h and plan.h are its two halves, for those who need only one. Everything here is a plain value or a
// pure function; any thread may call it.
//
//     MemoryGraph graph;
//     graph.values = {{.bytes = 4096}, {.bytes = 8192}, {.bytes = 64, .keep = true}};
//     graph.steps = {{.writes = {0}}, {.reads = {0}, .writes = {1}}, {.reads = {1}, .writes = {2}}};
//     const GraphPlan made = plan_graph(graph).value();  // made.order, made.plan.slots, made.lower_bound
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

// A value. It is live, with all its windows, from the first step that writes any of them to the last step that uses any
// of them. If no step writes any, it is an input, live from the beginning; if no step reads any, it is an output and
// stays live to the end.
struct GraphValue {
  std::uint64_t bytes = 0;
  bool keep = false;  // stays live to the end even if steps read it

  // The offset of its slot is a multiple of this power of two.
  std::uint64_t alignment = 1;

  // It has no bytes of its own: it is a window of another value (`node` is an index of MemoryGraph::values), which then
  // lives as long as both. A step that writes it and reads the other value, such as a reshape, makes a view of what is
  // there; any other step that writes it fills it, such as a part of a concatenation. If no step writes it, it can be
  // read as soon as the other value can.
  std::optional<AliasOf> alias = std::nullopt;

  std::string label = {};  // used in messages and maps; does not affect the plan
};

// `write` may take over the bytes of `read`, such as the output of an activation. It is used in orders in which no
// later step uses `read` or a window of it, if `write` is not larger, and if `read` begins where its root does and
// `write` is not an alias.
struct InPlace {
  std::uint32_t write = 0;
  std::uint32_t read = 0;
};

struct GraphStep {
  std::vector<std::uint32_t> reads = {};   // values
  std::vector<std::uint32_t> writes = {};  // values; each value is written by at most one step
  std::vector<std::uint32_t> after = {};   // steps that must come first for another reason than a value
  std::uint64_t scratch = 0;               // bytes needed only during the step
  std::vector<InPlace> in_place = {};      // each value of `writes` at most once

  // How long the step takes. Set it only for a step that may run more than once, with the same result.
  std::optional<double> seconds = std::nullopt;
};

struct MemoryGraph {
  std::vector<GraphValue> values = {};
  std::vector<GraphStep> steps = {};
  std::uint64_t alignment = 1;  // minimum alignment of every slot that is not an alias: a power of two
};

struct GraphOptions {
  // The order to improve on: each step once, after the steps that it depends on. Empty: the order by index if that is
  // valid, otherwise some valid order.
  std::span<const std::uint32_t> given = {};

  // Steps may run again for at most this many seconds in sum, where that makes the plan smaller. Only steps that say
  // how long they take are run again. Zero: each step runs once.
  double recompute_seconds = 0;

  // How many steps the search for an order may try; about a second for each twenty million.
  std::uint64_t order_work = 20'000'000;

  // How the values are placed, and when to stop. A time limit is for both; about half of it goes to the order.
  PlanOptions plan = {};
};

// What one lifetime of GraphPlan::problem is.
struct GraphNode {
  std::uint32_t value = kNoNode;  // kNoNode: the scratch memory of a step
  std::uint32_t at = kNoNode;     // position in `order` of the step that writes it or needs it; kNoNode: an input
};

struct GraphPlan {
  // Steps in the order in which they run. A step that is there again recomputes what it writes; later steps read that.
  std::vector<std::uint32_t> order = {};

  std::vector<GraphNode> nodes = {};  // of each lifetime and slot
  PlanProblem problem = {};           // lifetimes of that order: position k is level k
  MemoryPlan plan = {};               // its bound is that of this order

  std::uint64_t size = 0;         // of the plan
  std::uint64_t peak = 0;         // most bytes live during any step; sizes rounded up to the graph's alignment
  std::uint64_t given_peak = 0;   // of the given order
  std::uint64_t lower_bound = 0;  // no order that runs each step once has a smaller plan
  bool optimal = false;           // size is at most lower_bound
  double recomputed_seconds = 0;  // what running steps again takes
  std::uint64_t order_work = 0;   // steps tried
  double seconds = 0;             // wall time spent

  // The distance of the size from the bound, as a fraction of the bound; 0 if proven optimal.
  double gap() const noexcept {
    return lower_bound == 0 || size <= lower_bound
               ? 0.0
               : static_cast<double>(size - lower_bound) / static_cast<double>(lower_bound);
  }
};

// Plans the graph. The plan is at most as large as the plan of the given order and as that of order_for_memory()'s,
// each by plan() with the same options (with a time limit: as far as that lets them finish). Without a time limit the
// same graph and options always give the same result. The bound takes O((n + e) n / 64) time for n steps that use e
// values, the search at most order_work steps, plan() comes on top; memory is O(n + e). Fails with
//   kInvalidArgument  a value, step or option is out of range: an unknown value or step, a value written twice, a
//   window
//                     outside its value, an alignment that is no power of two, more than 2^50 bytes in sum, a given
//                     order that is not one, times that are negative or not finite; the message names it
//   kCycle            no order exists, or a chain of aliases leads back to itself
// A stop request (PlanOptions::cancel) ends the search soon; the best plan so far is returned.
Result<GraphPlan> plan_graph(const MemoryGraph& graph, const GraphOptions& options = {});

// The rules that a GraphPlan can violate.
enum class GraphRule : std::uint8_t {
  kNone,          // the plan is valid
  kInvalidGraph,  // the graph itself is not one that plan_graph() takes
  kWrongOrder,    // a step is missing or unknown, or runs before a step that it depends on
  kMayNotRepeat,  // a step runs again that may not
  kWrongNodes,    // the nodes are not what lives in this order, or not for these levels
  kWrongPlan,     // the plan violates a rule of plan.h for its problem
  kWrongFigures,  // size, peak, bound or times are not those of the plan
};

struct GraphViolation {
  GraphRule rule = GraphRule::kNone;
  std::uint32_t at = kNoNode;  // the position in the order or the node at fault, if there is one
  Violation plan = {};         // with kWrongPlan

  explicit operator bool() const noexcept { return rule != GraphRule::kNone; }
};

// Checks that the order respects the graph, that the lifetimes follow from the order, and that the plan is one for
// them. Shares no code with plan_graph(). O((n + e) log n).
GraphViolation validate(const MemoryGraph& graph, const GraphPlan& plan);

// The stable name of a rule, such as "WrongOrder".
std::string_view to_string(GraphRule rule) noexcept;

}  // namespace berth
