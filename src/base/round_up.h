// Rounding sizes and offsets up to a multiple.
#pragma once

#include <concepts>
#include <type_traits>

namespace berth::internal {

// The smallest multiple of `multiple` that is not below `value`.
// Requires: multiple > 0; the result fits T.
template <std::unsigned_integral T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) noexcept {
  // For a power of two, which every alignment is, this costs no division.
  if ((multiple & (multiple - 1)) == 0) return (value + multiple - 1) & ~(multiple - 1);
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace berth::internal
