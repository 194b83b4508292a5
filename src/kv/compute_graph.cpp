#include "kv/compute_graph.h"

#include <algorithm>
#include <utility>

namespace berth::internal::fit {
namespace {

// ggml aligns tensors in memory of the CPU to this.
constexpr std::uint64_t kAlignment = 32;

// Free memory as ggml keeps it: blocks by offset, of which the last has no end. A tensor goes into the smallest block
// that fits, the last of equals; into the endless one only if no other fits.
class BestFit {
 public:
  std::uint64_t take(std::uint64_t size) {
    std::size_t best = blocks_.size() - 1;
    std::uint64_t best_size = kMostBytes;
    for (std::size_t i = 0; i + 1 < blocks_.size(); ++i)
      if (blocks_[i].second >= size && blocks_[i].second <= best_size) {
        best = i;
        best_size = blocks_[i].second;
      }
    auto& [offset, room] = blocks_[best];
    const std::uint64_t taken = offset;
    offset = add(offset, size);
    if (best + 1 < blocks_.size()) {
      room -= size;
      if (room == 0) blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(best));
    }
    top_ = std::max(top_, add(taken, size));
    return taken;
  }
  void give(std::uint64_t offset, std::uint64_t size) {
    if (size == 0) return;
    auto next = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& block) { return block.first >= offset; });
    if (next != blocks_.begin() && std::prev(next)->first + std::prev(next)->second == offset) {
      auto before = std::prev(next);
      before->second += size;
      if (next != blocks_.end() && before->first + before->second == next->first) join(before, next);
      return;
    }
    if (next != blocks_.end() && offset + size == next->first) {
      next->first = offset;
      if (std::next(next) != blocks_.end()) next->second += size;
      return;
    }
    blocks_.insert(next, {offset, size});
  }
  std::uint64_t top() const { return top_; }

 private:
  using Blocks = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // offset, bytes; the bytes of the last are moot
  void join(Blocks::iterator before, Blocks::iterator next) {
    before->second += next->second;
    blocks_.erase(next);
  }
  Blocks blocks_{{0, 0}};
  std::uint64_t top_ = 0;
};

}  // namespace

ComputeGraph::Id ComputeGraph::push(Tensor tensor, std::initializer_list<Id> sources) {
  for (const Id source : sources)
    if (source != kExternal) tensor.sources[tensor.source_count++] = source;
  tensor.bytes =
      multiply(multiply(tensor.shape[0], tensor.shape[1], tensor.shape[2]), tensor.shape[3], tensor.element_bytes);
  tensors_.push_back(tensor);
  return static_cast<Id>(tensors_.size() - 1);
}

ComputeGraph::Id ComputeGraph::input(Shape shape, std::uint32_t element_bytes) {
  return push({.shape = shape, .element_bytes = element_bytes, .kind = Kind::kInput}, {});
}

ComputeGraph::Id ComputeGraph::make(Shape shape, std::initializer_list<Id> sources, std::uint32_t element_bytes) {
  return push({.shape = shape, .element_bytes = element_bytes, .kind = Kind::kOwn}, sources);
}

ComputeGraph::Id ComputeGraph::in_place(Shape shape, std::initializer_list<Id> sources) {
  return push({.shape = shape, .kind = Kind::kInPlace}, sources);
}

ComputeGraph::Id ComputeGraph::view(Id source, Shape shape) {
  const Tensor& of = tensors_[source];
  return push({.shape = shape,
               .element_bytes = of.element_bytes,
               .root = of.kind == Kind::kView ? of.root : source,
               .kind = Kind::kView},
              {source});
}

ComputeGraph::Id ComputeGraph::write_into(Id target, std::initializer_list<Id> sources) {
  const Id result = push({.shape = tensors_[target].shape,
                          .element_bytes = tensors_[target].element_bytes,
                          .root = tensors_[target].kind == Kind::kView ? tensors_[target].root : target,
                          .kind = Kind::kView},
                         sources);
  tensors_[result].sources[tensors_[result].source_count++] = target;
  return result;
}

ComputeGraph::Id ComputeGraph::write(std::initializer_list<Id> sources) {
  return push({.shape = {0, 1, 1, 1}, .kind = Kind::kWrite}, sources);
}

void ComputeGraph::expand(Id id) {
  // Depth first, sources from left to right, without recursion.
  std::vector<std::pair<Id, std::uint32_t>> path{{id, 0}};
  if (tensors_[id].expanded) return;
  tensors_[id].expanded = true;
  while (!path.empty()) {
    auto& [at, next] = path.back();
    if (next < tensors_[at].source_count) {
      const Id source = tensors_[at].sources[next++];
      if (!std::exchange(tensors_[source].expanded, true)) path.emplace_back(source, 0);
      continue;
    }
    (tensors_[at].kind == Kind::kInput ? inputs_ : order_).push_back(at);
    path.pop_back();
  }
}

std::vector<ComputeGraph::Use> ComputeGraph::count_uses() const {
  std::vector<Use> uses(tensors_.size());
  for (const Id id : order_) {
    if (tensors_[id].kind == Kind::kView) ++uses[tensors_[id].root].views;
    for (const Id source : sources_of(id)) ++uses[source].children;
  }
  return uses;
}

ComputeGraph::Id ComputeGraph::donor(Id id, const std::vector<Use>& uses) const {
  const Tensor& tensor = tensors_[id];
  if (tensor.kind != Kind::kInPlace) return kExternal;
  for (const Id source : sources_of(id)) {
    const Tensor& from = tensors_[source];
    if (from.kind == Kind::kView || from.output || !uses[source].allocated) continue;
    if (from.shape != tensor.shape || from.element_bytes != tensor.element_bytes) continue;
    if (uses[source].children == 1 && uses[source].views == 0) return source;
  }
  return kExternal;
}

template <class Visitor>
void ComputeGraph::visit(Visitor& visitor) const {
  std::vector<Use> uses = count_uses();
  const auto free = [&](Id id) {
    if (!uses[id].allocated || tensors_[id].output) return;
    uses[id].allocated = false;
    visitor.give(id);
  };
  for (const Id id : inputs_) {
    visitor.take(id);
    uses[id].allocated = true;
  }
  for (const Id id : order_) {
    const Tensor& tensor = tensors_[id];
    if (tensor.kind == Kind::kOwn || tensor.kind == Kind::kInPlace) {
      if (const Id from = donor(id, uses); from != kExternal) {
        uses[from].allocated = false;
        visitor.reuse(id, from);
      } else {
        visitor.take(id);
      }
      uses[id].allocated = true;
    }
    for (const Id source : sources_of(id)) {
      if (--uses[source].children > 0) continue;
      if (tensors_[source].kind == Kind::kView) {
        const Id root = tensors_[source].root;
        if (--uses[root].views == 0 && uses[root].children == 0) free(root);
      } else if (uses[source].views == 0) {
        free(source);
      }
    }
    visitor.done();
  }
}

std::uint64_t ComputeGraph::reserved_bytes() const {
  struct Placer {
    const std::vector<Tensor>& tensors;
    std::vector<std::uint64_t> offsets;
    BestFit memory{};
    std::uint64_t size(Id id) const { return pad(tensors[id].bytes, kAlignment); }
    void take(Id id) { offsets[id] = memory.take(size(id)); }
    void reuse(Id id, Id from) { offsets[id] = offsets[from]; }
    void give(Id id) { memory.give(offsets[id], size(id)); }
    void done() {}
  };
  Placer placer{.tensors = tensors_, .offsets = std::vector<std::uint64_t>(tensors_.size())};
  visit(placer);
  return placer.memory.top();
}

PlanProblem ComputeGraph::problem() const {
  struct Recorder {
    const std::vector<Tensor>& tensors;
    std::vector<std::uint32_t> nodes;  // of the plan, by tensor
    PlanProblem problem{};
    std::int64_t end;  // what is never given back stays until then
    std::int64_t now = 0;
    void take(Id id) {
      nodes[id] = static_cast<std::uint32_t>(problem.lifetimes.size());
      problem.lifetimes.push_back({.bytes = tensors[id].bytes, .first = now, .last = end});
    }
    void reuse(Id id, Id from) { nodes[id] = nodes[from]; }
    void give(Id id) { problem.lifetimes[nodes[id]].last = now + 1; }
    void done() { ++now; }
  };
  Recorder recorder{.tensors = tensors_,
                    .nodes = std::vector<std::uint32_t>(tensors_.size()),
                    .end = static_cast<std::int64_t>(order_.size()) + 1};
  recorder.problem.alignment = kAlignment;
  visit(recorder);
  return std::move(recorder.problem);
}

}  // namespace berth::internal::fit
