// The planner's own view of a problem. Nodes are folded into items (a root with its aliases and in-place successors),
// lifetimes into sections (see sections.h), and banks and blocks into one address space with lines that no item may
// cross. A Model holds one lane. It is built once, then only read, so any number of threads may share it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "berth/plan.h"

namespace berth::planner {

inline constexpr std::uint64_t kNowhere = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::uint32_t kNoItem = std::numeric_limits<std::uint32_t>::max();

// A rectangle of an item: `height` bytes above the item's offset during sections [first, last).
struct Part {
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::uint32_t item = 0;
  std::uint64_t height = 0;
};

// What gets one offset. Its parts are ascending in time and disjoint; most items have exactly one.
struct Item {
  std::uint64_t height = 0;      // the largest of its parts'
  std::uint64_t alignment = 1;   // power of two
  std::uint64_t minimum = 0;     // no offset below this: where the first bank it may be in starts
  std::uint64_t fixed = kNowhere;
  std::uint64_t hint = kNowhere;
  std::int64_t start = 0;        // first level, for strategies that go by time
  std::uint32_t part_begin = 0;  // into Model::parts
  std::uint32_t part_end = 0;
  std::int32_t first = 0;        // hull of its parts
  std::int32_t last = 0;
};

// One stretch of address space that becomes a block of its own.
struct Segment {
  std::uint64_t base = 0;
  std::uint64_t capacity = kNowhere;
  std::uint32_t bank = 0;
};

// All banks and blocks end to end. The last segment repeats for ever, `stride` apart, when its bank has no limit.
struct Space {
  std::vector<Segment> segments;
  std::uint64_t stride = 0;  // 0: the last segment does not repeat
  bool plain = true;         // one segment without a limit

  // The lowest offset at or above `offset` where `height` bytes with this alignment cross no line; kNowhere if none.
  std::uint64_t place(std::uint64_t offset, std::uint64_t height, std::uint64_t alignment) const noexcept {
    const std::uint64_t aligned = (offset + alignment - 1) & ~(alignment - 1);
    return plain ? aligned : place_among_lines(aligned, height, alignment);
  }

 private:
  std::uint64_t place_among_lines(std::uint64_t offset, std::uint64_t height, std::uint64_t alignment) const noexcept;
};

struct Model {
  std::vector<Item> items;
  std::vector<Part> parts;
  std::int32_t sections = 0;
  Space space;
  std::uint32_t lane = 0;
  std::vector<std::uint32_t> item_of;  // of each node; kNoItem for nodes of zero bytes and of other lanes
  std::vector<std::uint64_t> delta;    // of each node: its bytes start this far above the item's offset; empty: all 0
  bool has_fixed = false;
  bool has_alignment = false;   // some item is aligned to more than the common divisor of all sizes
  bool in_place = false;        // some item joins nodes by in-place reuse

  std::span<const Part> parts_of(std::uint32_t item) const noexcept {
    return {parts.data() + items[item].part_begin, parts.data() + items[item].part_end};
  }
};

// Offsets of a Model's items in its Space, and where the highest ends.
struct Layout {
  std::vector<std::uint64_t> offsets;
  std::uint64_t top = 0;
};

// Highest end over all items; kNowhere if one has no place.
std::uint64_t top_of(const Model& model, std::span<const std::uint64_t> offsets) noexcept;

}  // namespace berth::planner
