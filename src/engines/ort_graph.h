// The nodes of a model in the engine's own format (.ort), and the order in which the engine executes them. The engine
// orders the nodes itself when it loads a model, and decides between equals by the index that each node has in the
// file, so another assignment of the indices is another order. Pure functions but for write_indices(); any thread may
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::internal::ort {

struct OrtNode {
  std::uint32_t index = 0;
  bool movable = true;                // false: the file leaves the index out because it is 0
  std::vector<std::uint32_t> reads;   // values
  std::vector<std::uint32_t> writes;  // values; each is written by one node
};

struct OrtGraph {
  std::vector<OrtNode> nodes;  // in file order
  std::vector<bool> returned;  // of each value: whether it is an output of the model

  // Where the file has the index of a node.
  struct Place {
    std::uint64_t at;
    std::uint32_t node;
  };
  std::vector<Place> places;
};

// Reads the main graph. O(nodes and their values). kInvalidData, with the position, for another kind of file, a
// truncated one, or one whose nodes and edges contradict each other. kUnsupported for control flow, whose nodes run
// nodes of other graphs, and for optimisations that the engine applies when it loads the model.
Result<OrtGraph> read_graph(std::span<const std::byte> file);

// The order in which the engine executes the nodes if they have these indices: depth first from what nobody reads, at
// each node the input with the highest index first. O((n + e) log n). Requires: one index per node.
std::vector<std::uint32_t> execution_order(const OrtGraph& graph, std::span<const std::uint32_t> indices);

// Writes other indices into a file. kInvalidArgument if they are not the present ones in another order, or if a node
// that is not movable has another one. kIo: the file may then be incomplete.
Result<void> write_indices(const std::string& path, const OrtGraph& graph, std::span<const std::uint32_t> indices);

}  // namespace berth::internal::ort
