#include "engines/ort_graph.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engines/flatbuffer.h"
#include "engines/ort_format.h"

namespace berth::internal::ort {
namespace {

// The field numbers of the tables between the graph and what a node has.
constexpr unsigned kGraphNodes = 2, kGraphEdges = 4, kGraphOutputs = 6, kGraphOptimisations = 8;
constexpr unsigned kNodeIndex = 4, kNodeInputs = 8, kNodeOutputs = 9, kNodeAttributes = 10, kNodeImplicitInputs = 12;
constexpr unsigned kAttributeGraph = 7, kAttributeGraphs = 12;
constexpr unsigned kEdgesNode = 0, kEdgesIn = 1, kEdgesOut = 2;
constexpr std::uint64_t kEdgeBytes = 12;  // the index of a node, then two arguments

constexpr std::uint32_t kNobody = UINT32_MAX;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file), buffer_(file) {}

  Result<OrtGraph> read() {
    constexpr char kMagic[] = {'O', 'R', 'T', 'M'};
    if (file_.size() < 8 || std::memcmp(file_.data() + 4, kMagic, sizeof kMagic) != 0)
      return Error(Code::kInvalidData, Layer::kEngine,
                   "this is not a model in the engine's own format: no ORTM at byte 4");
    std::uint64_t table = buffer_.follow(0);
    for (const unsigned index : {kSessionModel, kModelGraph}) {
      const std::uint64_t at = buffer_.field(table, index);
      if (at == 0) return finish();
      table = buffer_.follow(at);
    }
    if (const std::uint64_t at = buffer_.field(table, kGraphOptimisations))
      if (buffer_.vector_in(buffer_.follow(at), 0, 4).count > 0) problem_ = "it has optimisations for loading";
    read_nodes(table);
    read_edges(table);
    names_in(table, kGraphOutputs, [&](std::uint32_t value) { graph_.returned[value] = true; });
    return finish();
  }

 private:
  Result<OrtGraph> finish() {
    if (buffer_.broken)
      return Error(Code::kInvalidData, Layer::kEngine, "the model refers to byte {} of a file of {}", buffer_.broken_at,
                   file_.size());
    if (contradiction_ != nullptr) return Error(Code::kInvalidData, Layer::kEngine, contradiction_);
    if (problem_ != nullptr) return Error(Code::kUnsupported, Layer::kEngine, problem_);
    return std::move(graph_);
  }

  bool ok() const { return !buffer_.broken && contradiction_ == nullptr && problem_ == nullptr; }

  // Every reference takes four bytes of the file; tables that share their lists would have more of them.
  bool count_one() {
    if (++references_ > file_.size() / 4 + 1) contradiction_ = "the model has more references than bytes";
    return ok();
  }

  void read_nodes(std::uint64_t graph) {
    const Flatbuffer::Vector nodes = buffer_.vector_in(graph, kGraphNodes, 4);
    for (std::uint64_t i = 0; i < nodes.count && count_one(); ++i) {
      const std::uint64_t table = buffer_.follow(nodes.begin + 4 * i);
      const auto number = static_cast<std::uint32_t>(graph_.nodes.size());
      OrtNode& node = graph_.nodes.emplace_back();
      place_index(table, kNodeIndex, number);
      if (!by_index_.emplace(node.index, number).second) contradiction_ = "two nodes of the model have the same index";
      const Flatbuffer::Vector attributes = buffer_.vector_in(table, kNodeAttributes, 4);
      for (std::uint64_t k = 0; k < attributes.count && count_one(); ++k) {
        const std::uint64_t attribute = buffer_.follow(attributes.begin + 4 * k);
        if (buffer_.field(attribute, kAttributeGraph) != 0 || buffer_.field(attribute, kAttributeGraphs) != 0)
          problem_ = "it has control flow";
      }
      if (buffer_.vector_in(table, kNodeImplicitInputs, 4).count > 0) problem_ = "it has control flow";
      names_in(table, kNodeInputs, [&](std::uint32_t value) { node.reads.push_back(value); });
      names_in(table, kNodeOutputs, [&](std::uint32_t value) {
        if (std::exchange(writer_[value], number) != kNobody) contradiction_ = "two nodes of the model write one value";
        node.writes.push_back(value);
      });
    }
  }

  // The index of a node in the file, which leaves it out if it is 0.
  void place_index(std::uint64_t table, unsigned field, std::uint32_t number) {
    OrtNode& node = graph_.nodes[number];
    const std::uint64_t at = buffer_.field(table, field);
    if (at == 0) {
      node.movable = false;
      return;
    }
    node.index = buffer_.number<std::uint32_t>(at);
    graph_.places.push_back({at, number});
  }

  void read_edges(std::uint64_t graph) {
    const Flatbuffer::Vector all = buffer_.vector_in(graph, kGraphEdges, 4);
    for (std::uint64_t i = 0; i < all.count && count_one(); ++i) {
      const std::uint64_t table = buffer_.follow(all.begin + 4 * i);
      const std::uint32_t number = node_at(buffer_.field(table, kEdgesNode));
      if (!ok()) return;
      place_index(table, kEdgesNode, number);
      for (const unsigned field : {kEdgesIn, kEdgesOut}) {
        const Flatbuffer::Vector ends = buffer_.vector_in(table, field, kEdgeBytes);
        for (std::uint64_t k = 0; k < ends.count && count_one(); ++k) {
          const std::uint64_t at = ends.begin + kEdgeBytes * k;
          const std::uint32_t other = node_at(at);
          if (ok()) graph_.places.push_back({at, other});
        }
      }
    }
  }

  std::uint32_t node_at(std::uint64_t at) {
    const auto found = by_index_.find(at == 0 ? 0 : buffer_.number<std::uint32_t>(at));
    if (found != by_index_.end()) return found->second;
    contradiction_ = "an edge of the model refers to a node that is not there";
    return 0;
  }

  // Calls `take` with the value of each name in a list that is not empty: optional arguments have empty names.
  template <class Take>
  void names_in(std::uint64_t table, unsigned field, const Take& take) {
    const Flatbuffer::Vector names = buffer_.vector_in(table, field, 4);
    for (std::uint64_t i = 0; i < names.count && count_one(); ++i) {
      const std::uint64_t text = buffer_.follow(names.begin + 4 * i);
      const auto length = buffer_.number<std::uint32_t>(text);
      if (length == 0 || !buffer_.holds(text + 4, length)) continue;
      const std::string_view name(reinterpret_cast<const char*>(file_.data()) + text + 4, length);
      const auto [found, is_new] = values_.emplace(name, static_cast<std::uint32_t>(values_.size()));
      if (is_new) {
        writer_.push_back(kNobody);
        graph_.returned.push_back(false);
      }
      take(found->second);
    }
  }

  std::span<const std::byte> file_;
  Flatbuffer buffer_;
  OrtGraph graph_;
  std::unordered_map<std::uint32_t, std::uint32_t> by_index_;
  std::unordered_map<std::string_view, std::uint32_t> values_;
  std::vector<std::uint32_t> writer_;  // of each value
  std::uint64_t references_ = 0;
  const char* contradiction_ = nullptr;
  const char* problem_ = nullptr;
};

}  // namespace

Result<OrtGraph> read_graph(std::span<const std::byte> file) {
  return Reader(file).read();
}

std::vector<std::uint32_t> execution_order(const OrtGraph& graph, std::span<const std::uint32_t> indices) {
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  const auto lower = [&](std::uint32_t a, std::uint32_t b) { return indices[a] < indices[b]; };
  std::vector<std::uint32_t> writer(graph.returned.size(), kNobody);
  for (std::uint32_t node = 0; node < count; ++node)
    for (const std::uint32_t value : graph.nodes[node].writes) writer[value] = node;
  std::vector<bool> is_read(count), entered(count);
  for (const OrtNode& node : graph.nodes)
    for (const std::uint32_t value : node.reads)
      if (writer[value] != kNobody) is_read[writer[value]] = true;

  struct Entry {
    std::uint32_t node;
    bool leave;
  };
  std::vector<std::uint32_t> next, order;
  for (std::uint32_t node = 0; node < count; ++node)
    if (!is_read[node]) next.push_back(node);
  std::vector<Entry> stack;
  const auto push_next = [&] {
    std::sort(next.begin(), next.end(), lower);
    for (const std::uint32_t node : next) stack.push_back({node, false});
  };
  push_next();
  while (!stack.empty()) {
    const Entry entry = stack.back();
    stack.pop_back();
    if (entry.leave) {
      order.push_back(entry.node);
      continue;
    }
    if (entered[entry.node]) continue;
    entered[entry.node] = true;
    stack.push_back({entry.node, true});
    next.clear();
    for (const std::uint32_t value : graph.nodes[entry.node].reads)
      if (writer[value] != kNobody && !entered[writer[value]]) next.push_back(writer[value]);
    push_next();
  }
  return order;
}

Result<void> write_indices(const std::string& path, const OrtGraph& graph, std::span<const std::uint32_t> indices) {
  std::vector<std::uint32_t> before, after(indices.begin(), indices.end());
  for (const OrtNode& node : graph.nodes) before.push_back(node.index);
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  bool valid = before == after;
  for (std::size_t i = 0; valid && i < indices.size(); ++i)
    valid = graph.nodes[i].movable || indices[i] == graph.nodes[i].index;
  if (!valid)
    return Error(Code::kInvalidArgument, Layer::kEngine, "these are not the indices of the model in another order");

  const auto failed = [&] { return Error::with_text(Code::kIo, Layer::kEngine, path + ": " + std::strerror(errno)); };
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return failed();
  Result<void> result;
  for (const OrtGraph::Place& place : graph.places) {
    const std::uint32_t index = indices[place.node];
    ssize_t written = -1;
    do written = pwrite(file, &index, sizeof index, static_cast<off_t>(place.at));
    while (written < 0 && errno == EINTR);
    if (written == sizeof index) continue;
    if (written >= 0) errno = ENOSPC;
    result = failed();
    break;
  }
  ::close(file);
  return result;
}

}  // namespace berth::internal::ort
