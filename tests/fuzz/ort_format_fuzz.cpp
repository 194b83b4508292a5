// Models in the engine's own format from anywhere: looking for their weights and nodes must neither crash nor name a
// place outside the file, and every model has an order of execution.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "engines/ort_format.h"
#include "engines/ort_graph.h"

namespace {

void read_nodes(std::span<const std::byte> file) {
  const auto graph = berth::internal::ort::read_graph(file);
  if (!graph) return;
  std::vector<std::uint32_t> indices;
  for (const berth::internal::ort::OrtNode& node : graph->nodes) {
    indices.push_back(node.index);
    for (const auto* values : {&node.reads, &node.writes})
      for (const std::uint32_t value : *values)
        if (value >= graph->returned.size()) std::abort();
  }
  for (const berth::internal::ort::OrtGraph::Place& place : graph->places)
    if (place.at > file.size() - 4 || place.node >= indices.size()) std::abort();
  if (berth::internal::ort::execution_order(*graph, indices).size() > indices.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_nodes(std::as_bytes(std::span(data, size)));
  const auto places = berth::internal::ort::find_weights(std::as_bytes(std::span(data, size)));
  if (!places) return 0;
  for (const berth::internal::ort::WeightPlace& place : *places) {
    if (place.reference > size - 4 || place.begin < 4 || place.begin > size) std::abort();
    if (place.bytes == 0 || place.bytes > size - place.begin) std::abort();
  }
  return 0;
}
