// Chooses an execution order that needs little memory. A graph of steps usually allows many orders, and their peaks of
// live bytes can differ by a factor of two. order_for_memory finds an order with a low peak: an exact search solves
// small graphs and small parts of large ones; heuristics and local search handle the rest. lifetimes_of passes the
// result to the planner. Everything here is a plain value or a pure function; any thread may call it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

// A step and the value it produces. The value is live from its step to the last step that reads it. A value that no
// step reads is an output and stays live to the end.
struct OrderNode {
  std::uint64_t bytes = 0;    // of the value
  std::uint64_t scratch = 0;  // needed only during the step
  bool keep = false;          // the value stays live to the end even if a step reads it
};

// `to` reads the value of `from`. For a pure ordering constraint, use a `from` node of zero bytes.
struct OrderEdge {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

struct OrderGraph {
  std::vector<OrderNode> nodes = {};
  std::vector<OrderEdge> edges = {};
};

struct OrderOptions {
  // The order to improve on: each node once, after the nodes it reads. Empty: the order by index if that is valid,
  // otherwise some valid order.
  std::span<const std::uint32_t> given = {};

  // The number of states that the exact search may visit per part of the graph. More states find and prove more.
  std::uint64_t work_limit = 200'000;
};

struct MemoryOrder {
  std::vector<std::uint32_t> order = {};
  std::uint64_t peak = 0;         // most bytes live during any step, including its scratch
  std::uint64_t given_peak = 0;   // of the given order; at least peak
  std::uint64_t lower_bound = 0;  // no order has a lower peak
  bool optimal = false;           // peak == lower_bound
};

// Returns an order whose peak is at most that of the given order, and as low as the search could find. The same input
// gives the same order. O((n + e) log n) time plus work_limit states per searched part; O(n + e) memory.
// kInvalidArgument: an edge or the given order names an unknown node, the given order is invalid, or the bytes exceed
// 2^62 in total. kCycle: no order exists.
Result<MemoryOrder> order_for_memory(const OrderGraph& graph, const OrderOptions& options = {});

// The most bytes live during any step of `order`. O(n + e). Fails like order_for_memory.
Result<std::uint64_t> order_peak(const OrderGraph& graph, std::span<const std::uint32_t> order);

// The values of the graph as lifetimes for the planner, in node order, for an execution of one step at a time: step k
// is level k. The scratch of a step, if any, is a separate lifetime; these follow the lifetimes of all nodes. O(n + e).
// Fails like order_for_memory.
Result<std::vector<Lifetime>> lifetimes_of(const OrderGraph& graph, std::span<const std::uint32_t> order);

}  // namespace berth
