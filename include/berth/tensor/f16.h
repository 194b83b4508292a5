// Conversion between f32 and f16 (IEEE 754 binary32 and binary16), one value or many. Rounds to nearest, ties to
// even; what is too large becomes infinity; what is too small becomes a subnormal or zero of its sign; NaN stays NaN,
// made quiet, with the top of its payload. Stateless: any thread may call. Arrays run at the speed of memory with the
// widest vectors the processor has, chosen once when the program runs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "berth/tensor/dtype.h"

namespace berth {

F16 to_f16(float value) noexcept;
float to_f32(F16 value) noexcept;

// Requires: source.size() == target.size(); the two do not overlap. O(n), allocates nothing.
void to_f16(std::span<const float> source, std::span<F16> target) noexcept;
void to_f32(std::span<const F16> source, std::span<float> target) noexcept;

// What the array conversions use on this machine: "avx512", "f16c" or "portable".
std::string_view f16_instructions() noexcept;

}  // namespace berth
