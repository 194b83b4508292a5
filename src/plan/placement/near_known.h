// Placing a model near a known plan of a similar one: greedy, no search.
#pragma once

#include <cstdint>
#include <span>

#include "plan/placement/model.h"

namespace berth::internal::planner {

// An item as the known plan has it.
struct KnownItem {
  std::uint64_t offset = kNowhere;  // kNowhere: it is new
  bool same = false;                // its sizes have not changed
};

// The first of a few attempts that is near the bound, else the best: unchanged items stay and the others go around
// them, and what stands too high throws others out; or all go as low as they can in the order of their known offsets,
// new ones last or first; or the largest first. Of equals the first. O(n k) for k items that are live at a time. The
// top is kNowhere if the space has no room for one. Requires: one entry for each item.
Layout place_near_known(const Model& model, std::span<const KnownItem> known);

}  // namespace berth::internal::planner
