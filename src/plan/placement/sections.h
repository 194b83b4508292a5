// Time, compressed. Only levels at which the set of live items is maximal matter to packing: two items meet in time
// exactly when they meet in one of these. Each becomes a section, numbered in order of time, so that a thousand levels
// may become a dozen sections.
#pragma once

#include <cstdint>
#include <span>

#include "berth/plan/plan.h"

namespace berth::internal::planner {

struct SectionRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
};

// Writes the sections [first, last) of each of `ranges`, none of which is empty, and returns their number. O(n log n).
std::int32_t compress(std::span<const LevelRange> ranges, std::span<SectionRange> sections);

}  // namespace berth::internal::planner
