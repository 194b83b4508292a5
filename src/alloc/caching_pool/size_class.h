// Size classes: multiples of 64 up to 512 bytes, then eight per power of two. The size of a class is less than 12.5 %
// larger than the sizes in it (below 512 bytes: less than 64 bytes larger).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace berth::internal {

inline constexpr unsigned kLargestClassBits = 38;
inline constexpr unsigned kSizeClasses = 8 + (kLargestClassBits - 9) * 8;
// Includes classes that no block has. Zero bytes count as 2^64.
inline constexpr unsigned kAllClasses = 8 + (64 - 9) * 8;

// The class of any number of bytes; above 2^61 bytes, one that no block has. Branch-free and short, because it is on
// the hot path of the pool. If `top` is the highest bit of the last byte's offset, but at least 9, a class is 2^(top -
// 3) bytes wide, and the eight classes of each width follow those of the previous width.
constexpr unsigned size_class(std::size_t bytes) noexcept {
  const auto top = static_cast<unsigned>(std::countl_zero((bytes - 1) | 1023)) ^ 63u;
  return static_cast<unsigned>((bytes * 8 - 8) >> top) + 8 * top - 72;
}

// Requires: index < kSizeClasses.
constexpr std::size_t class_bytes(std::size_t index) noexcept {
  if (index < 8) return (index + 1) * 64;
  return (9 + index % 8) << (6 + (index - 8) / 8);
}

static_assert(size_class(1) == 0 && size_class(512) == 7 && size_class(513) == 8 && size_class(1024) == 15);
static_assert(size_class(1025) == 16 && size_class(std::size_t{1} << kLargestClassBits) == kSizeClasses - 1);
static_assert(size_class(0) >= kSizeClasses && size_class(0) < kAllClasses);
static_assert(size_class(std::size_t{1} << 62) >= kSizeClasses && size_class(std::size_t{1} << 62) < kAllClasses);
static_assert(class_bytes(0) == 64 && class_bytes(7) == 512 && class_bytes(8) == 576 && class_bytes(15) == 1024);
static_assert(class_bytes(kSizeClasses - 1) == std::size_t{1} << kLargestClassBits);

}  // namespace berth::internal
