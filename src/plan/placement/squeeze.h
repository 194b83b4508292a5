// Getting a complete layout of a few hundred nodes under a lid, in microseconds. What stands above the lid is taken
// out; each node goes back where it is free or, if it is free nowhere, where it throws out what is easiest to place
// elsewhere. What was thrown out often becomes dear to throw out. The work is bounded, the result depends on the input
// alone, and nothing is allocated after construction. One thread uses it at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/sections.h"

namespace berth::internal::planner {

// When a node lives, and alignment - 1.
struct Extent {
  SectionRange sections;
  std::uint64_t mask = 0;
};

class Squeezer {
 public:
  // Requires: `extents` outlives this.
  explicit Squeezer(std::span<const Extent> extents);

  // Takes new sizes. O(n).
  void begin(std::span<const std::uint64_t> bytes);

  // Moves nodes of `offsets`, a layout of the sizes that were given last, so that all end at or below `lid`. False if
  // that did not work for `work`, or a little more: what is in `offsets` then is no layout. A unit of work is a node
  // that is looked at; what was done is taken off. O(n log n) to begin with, O(n) for each node that is moved.
  // Requires: one offset for each node; that of a node of zero bytes means nothing.
  bool squeeze(std::span<std::uint64_t> offsets, std::uint64_t lid, std::int64_t& work);

 private:
  struct Edge {
    std::uint64_t at;  // where the node begins, or ends
    SectionRange sections;
    std::uint32_t node;
  };

  void take_out(std::uint32_t node);
  std::uint32_t hardest_out();
  bool put_back(std::uint32_t node, std::span<std::uint64_t> offsets, std::uint64_t lid, std::int64_t& work);

  std::span<const Extent> extents_;
  std::span<const std::uint64_t> bytes_;
  std::vector<std::uint64_t> difficulty_, price_;
  std::vector<double> root_length_;
  std::vector<Edge> lows_, highs_;  // of the nodes that have a place, ascending
  std::vector<std::uint32_t> out_;  // a heap, the most difficult first
};

}  // namespace berth::internal::planner
