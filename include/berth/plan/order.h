// Choosing an order of execution that needs little memory. A graph of steps usually allows many orders; how much is
// alive at once differs between them, sometimes by half. order_for_memory finds an order with a lower peak: exactly
// for small graphs and for the small parts of large ones, by rules and local search beyond. Everything here is a plain
// value or a pure function; any thread may call it. The result feeds the planner through lifetimes_of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

// A step and the value it makes. The value is alive from its step to the last step that reads it. A value that nobody
// reads is an output and stays to the end.
struct OrderNode {
  std::uint64_t bytes = 0;    // of the value
  std::uint64_t scratch = 0;  // needed during the step alone
  bool keep = false;          // the value stays to the end although somebody reads it
};

// `to` reads what `from` makes. An edge for order alone goes from a node of zero bytes.
struct OrderEdge {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

struct OrderGraph {
  std::vector<OrderNode> nodes = {};
  std::vector<OrderEdge> edges = {};
};

struct OrderOptions {
  // The order to improve on: each node once, after all it reads. Empty: by index if that is such an order, else some
  // order that is.
  std::span<const std::uint32_t> given = {};

  // States that the exact search may visit, for each part of the graph. More finds and proves more.
  std::uint64_t work_limit = 200'000;
};

struct MemoryOrder {
  std::vector<std::uint32_t> order = {};
  std::uint64_t peak = 0;         // most bytes alive during any step, its scratch included
  std::uint64_t given_peak = 0;   // of the order given; never below peak
  std::uint64_t lower_bound = 0;  // no order has a lower peak
  bool optimal = false;           // peak == lower_bound
};

// An order of the graph whose peak is at most that of the order given, and as low as could be found. The same input
// gives the same order. O((n + e) log n) time plus work_limit states for each part that is searched; O(n + e) memory.
// kInvalidArgument: an edge or the given order names a node that is not there, the given order is not one, or the
// bytes exceed 2^62 in sum. kCycle: no order exists.
Result<MemoryOrder> order_for_memory(const OrderGraph& graph, const OrderOptions& options = {});

// Most bytes alive during any step of `order`. O(n + e). Fails like order_for_memory.
Result<std::uint64_t> order_peak(const OrderGraph& graph, std::span<const std::uint32_t> order);

// The values of the graph as lifetimes for the planner, in the order of its nodes, when one step of `order` runs at a
// time: step k is level k. A step's scratch is a lifetime of its own, after those of all nodes, for nodes that have
// some. O(n + e). Fails like order_for_memory.
Result<std::vector<Lifetime>> lifetimes_of(const OrderGraph& graph, std::span<const std::uint32_t> order);

}  // namespace berth
