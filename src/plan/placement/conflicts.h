// Local search over conflicts. Every item always has a place below a lid, but items may overlap; the search moves one
// item at a time, always to where it overlaps the least, until no two overlap. Each pair of items has a weight: when
// no move helps, the pairs that overlap get heavier, so pairs that are hard to keep apart are kept apart first. The
// weights are what it learns, and they are kept when the lid is lowered.
//
// It is at its best where exhaustive search is at its worst: hundreds of items with a few percent of slack. It proves
// nothing. One thread uses a ConflictSearch at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/interrupt.h"
#include "plan/placement/model.h"
#include "plan/placement/random.h"

namespace berth::internal::planner {

class ConflictSearch {
 public:
  // Whether it can plan the model: plain items, and few enough that its tables stay small.
  static bool suits(const Model& model);

  // Sets out from a complete layout. Requires: suits(model).
  ConflictSearch(const Model& model, const Layout& start, std::uint64_t seed);

  struct Limits {
    std::uint64_t goal = 0;  // stop at a top at or below this
    std::uint64_t work = 0;
    Interrupt interrupt;
  };
  // Goes on from where it was, within these limits, keeping the lowest layout in best(). Allocates nothing per move.
  void improve(const Limits& limits);
  const Layout& best() const noexcept { return best_; }

  // The offsets under the present lid with the fewest conflicting items that the last improve() met. Not a layout, but
  // close to one.
  Layout nearest() const;

  // Units spent by the last improve().
  std::uint64_t work() const noexcept { return work_; }

 private:
  using Cell = float;  // whole numbers, exact below 2^24; floats because every processor can take their minimum quickly
  struct Block {
    std::int32_t first, last, height;
  };

  std::int32_t up(std::uint64_t bytes) const noexcept { return static_cast<std::int32_t>((bytes + unit_ - 1) / unit_); }
  void begin(std::int32_t lid);
  bool descend(const Limits& limits);
  void move(std::uint32_t item, std::int32_t to);
  std::uint32_t best_mover();
  void find_least(std::uint32_t item);
  std::int32_t choose_place(std::uint32_t item);
  void raise_weights();
  void draw(std::uint32_t item);
  void add(std::uint32_t item, std::uint32_t other, std::int32_t at, Cell weight);
  void count_conflicts(std::uint32_t item, std::int32_t change);
  bool overlap(std::uint32_t a, std::uint32_t b) const noexcept;
  Cell* profile(std::uint32_t item) noexcept { return profile_.data() + std::size_t{item} * width_; }
  Layout settle() const;

  const Model& model_;
  std::uint64_t unit_ = 1;     // bytes
  std::int32_t floor_ = 0;     // units: the largest live load
  std::int32_t lid_ = 0;       // units: every item ends at or below it
  std::size_t width_ = 0;      // cells of a profile
  std::int32_t home_top_ = 0;  // units: where the highest of home_ ends
  bool under_way_ = false;     // a descent under lid_ was interrupted
  Layout best_;
  std::uint64_t work_ = 0;
  std::uint64_t moves_ = 0;
  Random random_;

  std::vector<Block> blocks_;
  std::vector<std::int32_t> at_, home_;  // where each item is, and was when nothing overlapped last
  std::vector<std::int32_t> nearest_;    // where each was when the fewest overlapped
  std::size_t fewest_ = 0;
  std::vector<std::uint32_t> begin_;        // of each item's slice of the tables of neighbours
  std::vector<std::uint32_t> neighbour_;    // items alive at the same time
  std::vector<std::uint32_t> twin_;         // the same pair seen from the other side
  std::vector<Cell> weight_;                // of the pair
  std::vector<std::uint32_t> conflicting_;  // items that overlap another
  std::vector<std::uint32_t> position_;     // in conflicting_, or kNoItem
  std::vector<std::int32_t> conflicts_;     // of each item: how many others it overlaps
  std::vector<std::uint64_t> moved_;        // when each item was moved last
  // Of each conflicting item: the weight of what it would overlap at each offset, the least of these elsewhere than
  // where it is, and whether that is still true.
  std::vector<Cell> profile_;
  std::vector<Cell> least_;
  std::vector<char> stale_;
  std::vector<Cell> steps_;             // scratch of draw
  std::vector<std::uint32_t> joining_;  // scratch of move
};

}  // namespace berth::internal::planner
