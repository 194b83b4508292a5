// The planner's own view of a problem. Nodes are folded into items (a root with its aliases and in-place successors),
// lifetimes into sections (see sections.h), and banks and blocks into one address space with lines that no item may
// cross. A Model holds one lane. It is built once, then only read, so any number of threads may share it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth::internal::planner {

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
  std::uint64_t height = 0;        // the largest of its parts'
  std::uint64_t alignment = 1;     // power of two
  std::uint32_t bank = 0;          // the first it may be in
  std::uint64_t fixed = kNowhere;  // offset in the first block of that bank
  std::uint64_t hint = kNowhere;
  std::int64_t start = 0;        // first level, for strategies that go by time
  std::uint64_t levels = 1;      // from its first to its last
  std::uint32_t part_begin = 0;  // into Model::parts
  std::uint32_t part_end = 0;
  std::int32_t first = 0;  // hull of its parts
  std::int32_t last = 0;
};

// All banks end to end, each with an address range of its own and cut into blocks. An offset in a Space says bank,
// block and offset in one number; a smaller one is in a bank that is preferred.
class Space {
 public:
  struct Address {
    std::uint32_t bank = 0;
    std::uint64_t block = 0;  // of this bank
    std::uint64_t offset = 0;
  };

  Space() = default;
  // `used` bytes of each bank are taken already. `alignment` is the largest that any item asks for.
  Space(const PlanProblem& problem, std::span<const std::uint64_t> used, std::uint64_t alignment);

  // One bank, one block, no limit: an offset is an offset.
  bool plain() const noexcept { return plain_; }
  std::uint64_t base(std::uint32_t bank) const noexcept { return std::uint64_t{bank} << kBankShift; }
  Address address(std::uint64_t offset) const noexcept;

  // The lowest offset at or above `offset` where `height` bytes with this alignment are inside one block; kNowhere if
  // there is none.
  std::uint64_t place(std::uint64_t offset, std::uint64_t height, std::uint64_t alignment) const noexcept {
    const std::uint64_t aligned = (offset + alignment - 1) & ~(alignment - 1);
    return plain_ ? aligned : place_in_block(aligned, height);
  }

 private:
  static constexpr unsigned kBankShift = 52;  // 4 PiB a bank, 4096 banks
  std::uint64_t place_in_block(std::uint64_t offset, std::uint64_t height) const noexcept;

  std::vector<std::uint64_t> capacity_;  // left in each bank
  std::uint64_t block_bytes_ = 0;        // largest block
  std::uint64_t stride_ = 0;             // from one block of a bank to the next
  bool plain_ = true;
};

struct Model {
  std::vector<Item> items;
  std::vector<Part> parts;
  std::int32_t sections = 0;
  Space space;
  std::uint32_t lane = 0;
  std::vector<std::uint32_t> nodes;          // the lane's nodes that have bytes
  std::vector<std::uint32_t> item_of;        // of each of these
  std::vector<std::uint64_t> delta;          // of each of these: it starts this far above its item
  std::vector<std::uint32_t> unbound_parts;  // not to be counted in a bound: they may be free of charge in some plan
  std::uint64_t alignment = 1;               // the largest of any item
  bool has_fixed = false;
  bool exact = true;  // what is impossible for the items is impossible for the nodes: nothing was joined in place

  std::span<const Part> parts_of(std::uint32_t item) const noexcept {
    return {parts.data() + items[item].part_begin, parts.data() + items[item].part_end};
  }
};

// The models of a problem, one for each lane that has bytes, in order of lane, over plain spaces. With `in_place` the
// nodes that may reuse others in place do. Fails like plan() for invalid input. O(n log n).
Result<std::vector<Model>> build_models(const PlanProblem& problem, bool in_place);

// Whether any node may reuse another in place.
bool has_in_place(const PlanProblem& problem) noexcept;

// Offsets of a Model's items in its Space, and where the highest ends.
struct Layout {
  std::vector<std::uint64_t> offsets;
  std::uint64_t top = 0;
};

// Highest end over all items; kNowhere if one has no place.
std::uint64_t top_of(const Model& model, std::span<const std::uint64_t> offsets) noexcept;

}  // namespace berth::internal::planner
