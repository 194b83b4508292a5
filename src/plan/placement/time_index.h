// Which items are alive in a stretch of time. O(n) memory. Any thread may ask while none changes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/placement/model.h"

namespace berth::internal::planner {

class TimeIndex {
 public:
  // Of all items of a model.
  explicit TimeIndex(const Model& model);
  // Of none yet, over sections [0, sections).
  explicit TimeIndex(std::int32_t sections);

  // An item that is alive in sections [first, last), which are not none. Adding takes constant time, removing O(k) for
  // k items in the one or two blocks that it is kept in. Requires for removing: it was added with these sections.
  void add(std::uint32_t item, std::int32_t first, std::int32_t last);
  void remove(std::uint32_t item, std::int32_t first, std::int32_t last);

  // Calls `visit(item)` once for each item whose hull meets sections [first, last), always in the same order. O(k) for
  // k items in the blocks of time that the stretch touches.
  template <class Visit>
  void alive(std::int32_t first, std::int32_t last, Visit visit) const {
    for (const Level& level : levels_) {
      for (std::int32_t b = first >> level.shift; b <= (last - 1) >> level.shift; ++b) {
        for (const Entry& it : level.blocks[static_cast<std::size_t>(b)]) {
          if (it.first >= last || it.last <= first) continue;
          if (b == std::max(first, it.first) >> level.shift) visit(it.item);  // the first block that both touch
        }
      }
    }
  }

 private:
  struct Entry {
    std::int32_t first, last;
    std::uint32_t item;
  };
  // An item is kept at the first level whose blocks are at least as long as it, in the one or two that it touches.
  struct Level {
    unsigned shift;
    std::vector<std::vector<Entry>> blocks;
  };
  Level& level_for(std::int32_t first, std::int32_t last);
  std::vector<Level> levels_;
};

}  // namespace berth::internal::planner
