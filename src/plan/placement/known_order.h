// The orders of known plans, ready to place other sizes. It holds all its memory: placing allocates nothing. One thread
// uses it at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/sections.h"
#include "plan/placement/squeeze.h"

namespace berth::internal::planner {

class KnownOrder {
 public:
  struct Node {
    LevelRange levels;
    std::uint64_t alignment = 1;
    std::uint64_t known = 0;  // offset, or kNowhere
  };
  struct Placed {
    std::uint64_t top = 0;
    std::uint64_t load = 0;  // the largest sum of live bytes
  };

  explicit KnownOrder(std::span<const Node> nodes);

  // Another plan of the same nodes: its offsets, or kNowhere. Beyond kMostOrders it replaces the oldest but the first.
  // Requires: one for each node. O(n log n).
  void learn(std::span<const std::uint64_t> offsets);

  std::size_t size() const noexcept { return nodes_.size(); }

  // Requires: one entry for each node in both, and bytes that sum to at most 2^50.
  Placed place(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets);

 private:
  // What has a place, in ascending order of `low`, as flat arrays with room behind the last for the kernels.
  struct Rectangles {
    std::vector<std::int32_t> first, last;
    std::vector<std::int64_t> low, high;
    std::uint32_t count = 0;
  };

  std::uint64_t measure(std::span<const std::uint64_t> bytes);
  std::uint64_t let_down(std::span<const std::uint32_t> order, std::span<const std::uint64_t> bytes,
                         std::span<std::uint64_t> offsets, std::uint64_t below);
  std::uint64_t first_fit(std::span<const std::uint32_t> order, std::span<const std::uint64_t> bytes,
                          std::span<std::uint64_t> offsets, std::uint64_t below, std::int64_t& work);
  void show_loads();
  // The highest point of the skyline over these sections, and raising it there to `level`, which is no lower.
  std::uint64_t highest(SectionRange range) const noexcept;
  void raise(SectionRange range, std::uint64_t level) noexcept;

  std::int32_t sections_ = 0;
  std::vector<Extent> nodes_;
  static constexpr std::size_t kMostOrders = 32;
  std::vector<std::vector<std::uint32_t>> orders_;  // each by known offset; nodes without one last
  std::size_t next_ = 1;                            // the order that the next one replaces when there are enough
  // The skyline, in blocks: a block that was raised as a whole says so, and its sections are not touched.
  std::vector<std::uint64_t> skyline_, block_high_, block_whole_;
  std::vector<std::uint64_t> loads_;
  std::vector<std::uint32_t> trial_order_;
  std::vector<std::uint64_t> trial_;  // offsets of an attempt
  std::vector<double> keys_;
  Rectangles placed_;  // scratch of first_fit
  Squeezer squeezer_;
};

}  // namespace berth::internal::planner
