// Bundles: items that fill a rectangle of time and bytes together, to be planned as one. A tight problem is much
// smaller once these are found. There are three ways to join blocks, single items or bundles, into a larger block:
//
//   in a row     one ends where the other begins, and both have the same height
//   in a stack   both have the same lifetime
//   a pinwheel   four turn around one in the middle, and no line cuts all five apart:   dcc
//                                                                                       deb
//                                                                                       aab
//
// Where a section is full, such a pair often has to be joined; elsewhere joining is a guess. What is free below the
// capacity takes part as blocks of its own, so that a packing with a little slack is filled up to one without any, and
// joins as well. Which joins are made, and how free bytes are cut into blocks, is left to chance within reason: the
// fewer alternatives a join has, the earlier it is made. So every bundling is another small problem; a packing of it is
// one of the items, but if it has none, nothing follows for them.
//
// A Bundler holds its memory and is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "plan/placement/random.h"

namespace berth::internal::planner {

struct Block {
  std::int32_t first = 0, last = 0;  // sections
  std::int64_t height = 0;
  double length = 0;  // in levels
  double heat = 0;    // the highest load of its life
};

class Bundler {
 public:
  // Items of one part each, whose offsets are free.
  Bundler(std::span<const Block> items, std::int32_t sections);

  // Joins the items anew, for a packing below `capacity`, which is no less than any load. About O(n k) for k items that
  // begin or end in one section.
  void join(std::int64_t capacity, Random& random);

  // The blocks that this left: every item is in one of them.
  std::span<const std::uint32_t> blocks() const noexcept { return left_; }
  const Block& operator[](std::uint32_t block) const noexcept { return nodes_[block].block; }

  // From the offsets of blocks(), in their order, to those of the items.
  template <class Unit>
  void spread(std::span<const Unit> offsets, std::span<Unit> items) {
    at_.resize(nodes_.size());
    for (std::size_t i = 0; i < left_.size(); ++i) at_[left_[i]] = static_cast<std::int64_t>(offsets[i]);
    spread_down();
    for (std::size_t i = 0; i < items.size(); ++i) items[i] = static_cast<Unit>(at_[i]);
  }

 private:
  enum class Shape : std::uint8_t { kSingle, kRow, kStack, kPinwheel };
  static constexpr std::size_t kMostParts = 5;
  struct Node {
    Block block;
    Shape shape = Shape::kSingle;
    bool filler = false;  // nothing but free bytes
    bool joined = false;  // into another
    std::uint32_t parts[kMostParts] = {};
  };
  struct Join {
    double cost = 0;
    Shape shape = Shape::kSingle;
    std::uint32_t parts[kMostParts] = {};
  };

  void fill(std::int64_t capacity, Random& random);
  void offer(Random& random, double cost, Shape shape, std::initializer_list<std::uint32_t> parts);
  void offer_stack(std::uint32_t lower, std::uint32_t upper, std::int64_t capacity, Random& random);
  void offer_pairs(std::int32_t section, std::int64_t capacity, Random& random);
  void offer_pinwheels(std::uint32_t middle, Random& random);
  std::uint32_t make(const Join& join);
  void list(std::uint32_t node);
  void unlist(std::uint32_t node);
  void spread_down();
  const Block& block(std::uint32_t node) const noexcept { return nodes_[node].block; }

  std::size_t items_;
  std::int32_t sections_;
  std::vector<std::int64_t> loads_;  // of each section
  std::vector<Node> nodes_;          // the items, then fillers, then what was joined
  // Of each section, and one more: the blocks that begin there, and that end before it.
  std::vector<std::vector<std::uint32_t>> begins_, ends_;
  std::vector<Join> joins_;  // a heap, the cheapest first; some of its parts are joined otherwise by now
  std::vector<std::uint32_t> left_;
  std::vector<std::int64_t> at_;  // scratch of spread
  double chance_ = 0;             // that two items have the same height
  // How the joins of one bundling are priced.
  double noise_ = 0, row_weight_ = 1, stack_weight_ = 1;
};

}  // namespace berth::internal::planner
