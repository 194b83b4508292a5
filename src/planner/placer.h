// Placing one item after another. A Placer remembers where items were put and finds, for the next one, the gaps that
// are free during all of its life. Every greedy rule is an order of items and a choice of gap. Memory is O(n). A Placer
// belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/model.h"

namespace berth::planner {

enum class Fit : std::uint8_t {
  kFirst,     // the lowest gap that is large enough
  kBest,      // the smallest gap that is large enough, the lowest of equals; above everything only if there is none
  kNearHint,  // where the item's hint says if that is free, else the best fit
};

class Placer {
 public:
  explicit Placer(const Model& model);

  // Where the item would go; kNowhere if the space has no room for it. O(k log k) for k placed items that share a
  // section with it, besides those in its sections' blocks that do not.
  std::uint64_t find(std::uint32_t item, Fit fit);
  // Whether the item would overlap nothing at this offset.
  bool free_at(std::uint32_t item, std::uint64_t offset);
  void put(std::uint32_t item, std::uint64_t offset);
  void clear();

 private:
  struct Rectangle {
    std::int32_t first, last;
    std::uint64_t low, high;
  };
  // Offsets strictly between `low` and `high` would overlap something. Signed: `low` is a height below an offset.
  struct Forbidden {
    std::int64_t low, high;
  };
  void collect(const Part& part);
  void sort_forbidden();

  const Model& model_;
  // Levels of blocks: a rectangle is kept at the level whose blocks are at least as long as it, in the one or two
  // blocks it touches, so a query sees few rectangles that do not concern it.
  struct Level {
    unsigned shift = 0;
    std::size_t count = 0;  // rectangles
    std::vector<std::vector<Rectangle>> blocks;
  };
  std::vector<Level> levels_;
  std::vector<Forbidden> forbidden_, scratch_;
};

// Fixed items first, where they must be, then the others in this order. Offsets are kNowhere for what found no room.
Layout place_in_order(const Model& model, std::span<const std::uint32_t> order, Fit fit);

}  // namespace berth::planner
