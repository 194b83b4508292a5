// Size classes: multiples of 64 up to 512 bytes, then eight to each power of two. A class is less than 12.5 %
// larger than the sizes in it (below 512 bytes: less than 64 bytes larger).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace berth {

inline constexpr unsigned kLargestClassBits = 38;
inline constexpr unsigned kSizeClasses = 8 + (kLargestClassBits - 9) * 8;

// Requires: 0 < bytes <= 2^kLargestClassBits.
constexpr unsigned size_class(std::size_t bytes) noexcept {
  if (bytes <= 512) return static_cast<unsigned>((bytes - 1) / 64);
  const auto top = static_cast<unsigned>(std::bit_width(bytes - 1)) - 1;
  return 8 + (top - 9) * 8 + static_cast<unsigned>(((bytes - 1) >> (top - 3)) & 7);
}

constexpr std::size_t class_bytes(unsigned index) noexcept {
  if (index < 8) return (index + 1) * std::size_t{64};
  return static_cast<std::size_t>(9 + index % 8) << (6 + (index - 8) / 8);
}

static_assert(size_class(1) == 0 && size_class(512) == 7 && size_class(513) == 8 && size_class(1024) == 15);
static_assert(class_bytes(0) == 64 && class_bytes(7) == 512 && class_bytes(8) == 576 && class_bytes(15) == 1024);
static_assert(class_bytes(kSizeClasses - 1) == std::size_t{1} << kLargestClassBits);

}  // namespace berth
