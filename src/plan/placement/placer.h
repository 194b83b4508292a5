// Placing one item after another. A Placer remembers where items were put and finds, for the next one, the gaps that
// are free during all of its life. Every greedy rule is an order of items and a choice of gap. Memory is O(n). A Placer
// belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/interrupt.h"
#include "plan/placement/model.h"

namespace berth::internal::planner {

enum class Fit : std::uint8_t {
  kFirst,     // the lowest gap that is large enough
  kBest,      // the smallest gap that is large enough, the lowest of equals; above everything only if there is none
  kNearHint,  // where the item's hint says if that is free, else the best fit
};

class Placer {
 public:
  explicit Placer(const Model& model);

  // Where the item would go; kNowhere if the space has no room for it. O(k) for k placed rectangles in the blocks of
  // time that it touches; first fit looks only at those up to where it goes.
  std::uint64_t find(std::uint32_t item, Fit fit);
  // Whether the item would overlap nothing at this offset.
  bool free_at(std::uint32_t item, std::uint64_t offset);
  void put(std::uint32_t item, std::uint64_t offset);

 private:
  struct Rectangle {
    std::int32_t first, last;
    std::uint64_t low, high;
  };
  // One block's rectangles as a query walks up them.
  struct Walk {
    const Rectangle* next;
    const Rectangle* end;
    std::int32_t first, last;
    std::uint64_t height;
  };
  // Rectangles by time: one is kept at the first level whose blocks are at least as long as it, in the one or two
  // blocks that it touches, so a query meets few that do not concern it. Each block is in order of `low`.
  struct Level {
    unsigned shift = 0;
    std::vector<std::vector<Rectangle>> blocks;
  };

  void begin_walks(std::uint32_t item);
  std::uint64_t clear_from(std::uint64_t at, const Item& item);
  std::uint64_t next_above();

  const Model& model_;
  std::vector<Level> levels_;
  std::vector<Walk> walks_;
};

// Fixed items first, where they must be, then the others in this order. Offsets are kNowhere for what found no room.
// Gives up when interrupted, with a top of kNowhere.
Layout place_in_order(const Model& model, std::span<const std::uint32_t> order, Fit fit,
                      const Interrupt* interrupt = nullptr);

}  // namespace berth::internal::planner
