// Dependencies between steps, derived from the bytes they use. Steps are processed in a given order. A step waits for
// the last writer of every byte it reads, and for the last writer and all readers since then of every byte it writes.
// Only overlapping bytes count: steps on disjoint windows of one storage are never ordered. Pure functions; any thread
// may call.
//
// The number of edges. Storages are split where an access begins or ends, and a segment tree is built on the pieces; an
// access covers O(log n) tree nodes. m readers of a range written in k pieces would need m x k edges. Instead, the tree
// node above the pieces gets a *join*, an empty step that waits for the k writers once, and the m readers wait for the
// join. Readers are joined in the same way before a write to a part of what they read. A join represents exactly the
// accesses of its tree node, so it adds no false dependency. Each access creates O(log n) joins and edges, amortised:
// O(n log n) time, memory and edges for n accesses. Joins that save no edge are removed at the end, so a schedule whose
// steps use whole buffers has none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace berth::internal {

inline constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

// Bytes [begin, end) of a storage that a step uses.
struct Touch {
  std::uint64_t storage = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t value = kNobody;  // the value expected in these bytes, if several values share them
  bool writes = false;
};

inline bool conflict(const Touch& a, const Touch& b) noexcept {
  return (a.writes || b.writes) && a.storage == b.storage && std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

struct Edge {
  std::uint32_t from = 0, to = 0;
};

// A step read bytes of `value` after another value was written over them.
struct Clobbered {
  std::uint32_t step = kNobody;  // the reader; kNobody: the value was to be kept until the end
  std::uint32_t value = kNobody;
};

struct Hazards {
  std::uint32_t node_count = 0;            // the steps, then the joins
  std::vector<Edge> edges;                 // each once
  std::vector<bool> reads_before_written;  // per touch: a read of bytes that no step wrote before
  std::optional<Clobbered> clobbered;      // the first, if any
};

// `touches` of step s are [first[s], first[s + 1]). `order` is the order in which the effects of the steps must appear,
// each step once. `after` are additional edges between steps. `kept` are touches whose value must still be present at
// the end.
Hazards find_hazards(std::span<const Touch> touches, std::span<const std::uint32_t> first,
                     std::span<const std::uint32_t> order, std::span<const Edge> after,
                     std::span<const Touch> kept = {});

}  // namespace berth::internal
