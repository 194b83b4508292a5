// The state of the f16 shadow of one block: the ranges of f32 bytes that it mirrors, and the ranges that can be written
// without the arena's knowledge. Not thread-safe: the arena holds a mutex.
#pragma once

#include <cstddef>
#include <vector>

namespace berth::internal {

// Bytes [begin, end) of a block.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

class ShadowState {
 public:
  // The shadow now mirrors `range`; ranges that it overlaps are removed. O(log n) to find, O(n) to insert among n fresh
  // ranges, which are disjoint and therefore few.
  void set_fresh(ByteRange range);

  // The f32 bytes of `range` changed.
  void set_stale(ByteRange range);

  // `range` may be written at any time from now on.
  void expose(ByteRange range);

  // True if exactly this range was mirrored last and cannot have changed since.
  bool is_fresh(ByteRange range) const;

 private:
  std::vector<ByteRange> fresh_;    // ascending, disjoint also after padding to whole pairs of halves
  std::vector<ByteRange> exposed_;  // ascending, disjoint, merged
};

}  // namespace berth::internal
