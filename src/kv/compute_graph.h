// The tensors of one run of a model by size and use alone, and the memory that they need. The graph follows the rules
// of ggml, the engine of llama.cpp: tensors are used in the order in which they are expanded, operations on elements
// take over the memory of their argument, and each tensor gets the smallest hole that fits when it is computed. Used by
// one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "berth/plan/plan.h"

namespace berth::internal::fit {

// Sizes from files may be absurd. Sums and products stop at kMostBytes, which no memory has.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
constexpr std::uint64_t add(std::uint64_t a, std::uint64_t b) noexcept {
  return a >= kMostBytes || b >= kMostBytes - a ? kMostBytes : a + b;
}
constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) noexcept {
  return a != 0 && b > kMostBytes / a ? kMostBytes : a * b;
}
constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b, std::uint64_t c) noexcept {
  return multiply(multiply(a, b), c);
}
// The smallest multiple of `unit` that is not below `value`. Requires: unit > 0.
constexpr std::uint64_t pad(std::uint64_t value, std::uint64_t unit) noexcept {
  return value >= kMostBytes - unit ? kMostBytes : (value + unit - 1) / unit * unit;
}

using Shape = std::array<std::uint64_t, 4>;  // innermost dimension first; unused ones are 1

class ComputeGraph {
 public:
  using Id = std::uint32_t;
  // Weights and caches: memory that is there before.
  static constexpr Id kExternal = 0xffff'ffff;

  // What the caller writes before the run. It is placed before all that is computed.
  Id input(Shape shape, std::uint32_t element_bytes = 4);
  // A tensor of its own.
  Id make(Shape shape, std::initializer_list<Id> sources, std::uint32_t element_bytes = 4);
  // A tensor that takes over the memory of its first source with the same shape that nothing else needs any more. Views
  // give none away.
  Id in_place(Shape shape, std::initializer_list<Id> sources);
  // Another shape for the bytes of `source`, or for some of them.
  Id view(Id source, Shape shape);
  // An operation on `sources` whose result goes into the bytes of `target`.
  Id write_into(Id target, std::initializer_list<Id> sources);
  // An operation whose result goes to external memory.
  Id write(std::initializer_list<Id> sources);
  // Puts what `id` needs and `id` itself at the end of the order, unless it is there already. O(tensors that are new).
  void expand(Id id);
  // Keeps the tensor until the end.
  void keep(Id id) { tensors_[id].output = true; }
  Shape shape(Id id) const { return tensors_[id].shape; }

  // The bytes that the engine reserves: best fit in the order of the graph.
  std::uint64_t reserved_bytes() const;
  // The same tensors as a planning problem.
  PlanProblem problem() const;

 private:
  static constexpr std::size_t kMostSources = 8;
  enum class Kind : std::uint8_t { kInput, kOwn, kInPlace, kView, kWrite };
  struct Tensor {
    Shape shape{1, 1, 1, 1};
    std::uint64_t bytes = 0;
    std::array<Id, kMostSources> sources{};
    std::uint8_t source_count = 0;
    std::uint32_t element_bytes = 4;
    Id root = kExternal;  // of a view: whose bytes it shows
    Kind kind = Kind::kOwn;
    bool output = false, expanded = false;
  };
  struct Use {
    std::uint32_t children = 0, views = 0;
    bool allocated = false;
  };

  Id push(Tensor tensor, std::initializer_list<Id> sources);
  std::span<const Id> sources_of(Id id) const {
    return std::span(tensors_[id].sources).first(tensors_[id].source_count);
  }
  std::vector<Use> count_uses() const;
  // The tensor whose memory `id` may take over now; kExternal if there is none.
  Id donor(Id id, const std::vector<Use>& uses) const;
  // Calls take(id), reuse(id, from) and give(id) as tensors come and go.
  template <class Visitor>
  void visit(Visitor& visitor) const;

  std::vector<Tensor> tensors_;
  std::vector<Id> order_;   // computed tensors
  std::vector<Id> inputs_;  // in the order in which they are first used
};

}  // namespace berth::internal::fit
