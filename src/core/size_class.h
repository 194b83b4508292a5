// Size classes: multiples of 64 up to 512 bytes, then eight to each power of two. A class is less than 12.5 %
// larger than the sizes in it (below 512 bytes: less than 64 bytes larger).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace berth {

inline constexpr unsigned kLargestClassBits = 38;
inline constexpr unsigned kSizeClasses = 8 + (kLargestClassBits - 9) * 8;
// With those that no block is of. Zero bytes count as 2^64.
inline constexpr unsigned kAllClasses = 8 + (64 - 9) * 8;

// Which class, for any number of bytes. A class is 2^shift bytes wide; the shift is chosen so that the numbers of the
// classes of one width, and of one width and the next, join without a gap. No branch: it is on the pool's hot path.
constexpr std::size_t size_class(std::size_t bytes) noexcept {
  const std::size_t last = bytes - 1;
  const auto top = static_cast<unsigned>(std::countl_zero(last | 512)) ^ 63u;  // the highest bit, at least 9
  const unsigned shift = top - 3;
  return (last >> shift) + std::size_t{8} * shift - 48;
}

// Requires: index < kSizeClasses.
constexpr std::size_t class_bytes(std::size_t index) noexcept {
  if (index < 8) return (index + 1) * 64;
  return (9 + index % 8) << (6 + (index - 8) / 8);
}

static_assert(size_class(1) == 0 && size_class(512) == 7 && size_class(513) == 8 && size_class(1024) == 15);
static_assert(size_class(1025) == 16 && size_class(std::size_t{1} << kLargestClassBits) == kSizeClasses - 1);
static_assert(size_class(0) == kAllClasses - 1);
static_assert(class_bytes(0) == 64 && class_bytes(7) == 512 && class_bytes(8) == 576 && class_bytes(15) == 1024);
static_assert(class_bytes(kSizeClasses - 1) == std::size_t{1} << kLargestClassBits);

}  // namespace berth
