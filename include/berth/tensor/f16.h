// Conversion between f32 and f16 (IEEE 754 binary32 and binary16) for single values and arrays. Rounds to nearest, ties
// to even. Values that are too large become infinity; values that are too small become a subnormal or a signed zero;
// NaN stays NaN, quiet, with the upper bits of its payload. Stateless: any thread may call. The array functions use the
// widest vector instructions of the processor, selected once at run time.
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

// The instructions that the array functions use on this machine: "avx512", "f16c" or "portable".
std::string_view f16_instructions() noexcept;

}  // namespace berth
