// What each node of a model asked for in a recorded run, and an order of execution that needs less. Pure functions; any
// thread may call.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "engines/ort_graph.h"

namespace berth::internal::ort {

// When the engine began to execute a node, in microseconds since the start of its profile.
struct NodeStart {
  std::uint32_t index = 0;
  std::uint64_t at = 0;
};

// The nodes in a profile that the engine wrote, in the order of their events. O(bytes). kInvalidData if it is not one.
Result<std::vector<NodeStart>> read_profile(std::string_view json);

// A request for memory during a run, on the clock of the profile.
struct TimedRequest {
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = kNever;  // when it was released
};

struct NodeMemory {
  std::vector<std::uint32_t> order;         // nodes, as they were executed
  std::vector<std::uint64_t> value_bytes;   // 0: it had no memory of its own
  std::vector<std::uint64_t> node_scratch;  // needed only while the node was executed
};

// Attributes the requests of one run to nodes and values: those that a node made and that live until the last reader
// of one of its outputs are that output, all others are its workspace. O((n + e + requests) log). kUnsupported if the
// nodes were not executed each once and in the order that execution_order() expects.
Result<NodeMemory> memory_of_nodes(const OrtGraph& graph, std::span<const NodeStart> starts,
                                   std::span<const TimedRequest> requests);

// The most bytes live at any time if the nodes are executed in this order. O(n + e).
std::uint64_t peak_in_order(const OrtGraph& graph, const NodeMemory& memory, std::span<const std::uint32_t> order);

struct IndexChoice {
  std::vector<std::uint32_t> indices;  // for write_indices()
  std::uint64_t peak = 0;              // with these
  std::uint64_t recorded_peak = 0;     // in the recorded order; at least `peak`
  std::uint64_t lower_bound = 0;       // no order of the nodes has a lower peak
};

// Indices with which the engine executes the nodes in an order that needs little memory: the order of plan_graph(), as
// far as the engine can be led to it, improved by exchanging indices. Takes about a second at most. kCycle.
Result<IndexChoice> choose_indices(const OrtGraph& graph, const NodeMemory& memory);

}  // namespace berth::internal::ort
