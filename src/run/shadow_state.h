// What an arena knows about the f16 shadow of one block: which ranges of f32 bytes it mirrors truthfully, and which
// can be written behind the arena's back. Not locked: the arena holds a mutex around it.
#pragma once

#include <cstddef>
#include <vector>

namespace berth {

// Bytes [begin, end) of a block.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

class ShadowState {
 public:
  // The shadow now mirrors `range`; whatever it overlapped before is forgotten. O(log n) to find, O(n) to insert
  // among n fresh ranges, which are disjoint, so few.
  void set_fresh(ByteRange range);

  // The f32 bytes of `range` changed.
  void set_stale(ByteRange range);

  // `range` may be written at any time from now on.
  void expose(ByteRange range);

  // Exactly this range was mirrored last, and nothing can have changed it since.
  bool is_fresh(ByteRange range) const;

 private:
  std::vector<ByteRange> fresh_;    // ascending, disjoint also after padding to whole pairs of halves
  std::vector<ByteRange> exposed_;  // ascending, disjoint, merged
};

}  // namespace berth
