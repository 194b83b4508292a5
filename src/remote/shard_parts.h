// Even splits of `units` units into `parts` parts: part p has units [first_of_part(p), first_of_part(p + 1)), whose
// numbers differ by one at most.
#pragma once

#include <cstdint>

namespace berth::internal {

// floor(part * units / parts), without overflow. O(1). Requires: part <= parts <= 2^32.
inline std::uint64_t first_of_part(std::uint64_t units, std::uint32_t parts, std::uint32_t part) noexcept {
  return units / parts * part + units % parts * part / parts;
}

// The part that has this unit. O(log parts). Requires: unit < units.
inline std::uint32_t part_of(std::uint64_t units, std::uint32_t parts, std::uint64_t unit) noexcept {
  std::uint32_t low = 0, high = parts - 1;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (first_of_part(units, parts, middle + 1) > unit)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace berth::internal
