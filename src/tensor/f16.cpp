#include "berth/tensor/f16.h"

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>

#include "tensor/f16_paths.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define BERTH_F16_X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace berth {

using namespace internal;

namespace {

// Rounding is done in integer arithmetic: adding just under half of the last kept bit, plus that bit, carries exactly
// if round-to-nearest-even rounds up, also across exponents and into infinity.
std::uint16_t half_bits(std::uint32_t bits) noexcept {
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fff'ffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f80'0000u) {  // NaN
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477f'f000u) {  // 65520 and more round to infinity
    half = 0x7c00u;
  } else if (magnitude >= 0x3880'0000u) {  // normal as f16
    half = (magnitude - 0x3800'0000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else if (magnitude > 0x3300'0000u) {  // above 2^-25: a subnormal that is not zero
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7f'ffffu) | 0x80'0000u;
    half = (mantissa + (1u << (shift - 1)) - 1u + (mantissa >> shift & 1u)) >> shift;
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint32_t float_bits(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return sign | 0x7f80'0000u | mantissa << 13 | (mantissa != 0 ? 0x40'0000u : 0u);
  if (exponent != 0) return sign | ((exponent + 112u) << 23) | mantissa << 13;
  if (mantissa == 0) return sign;
  // A subnormal: its leading bit becomes the implicit one.
  const auto up = static_cast<std::uint32_t>(std::countl_zero(mantissa)) - 21u;
  return sign | ((113u - up) << 23) | ((mantissa << up & 0x3ffu) << 13);
}

void to_f16_portable(const float* source, F16* target, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) target[i] = to_f16(source[i]);
}

void to_f32_portable(const F16* source, float* target, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) target[i] = to_f32(source[i]);
}

#ifdef BERTH_F16_X86

// CPUID is read directly, because clang's __builtin_cpu_supports does not know this name before version 17.
bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// The instructions round as their immediate says, independent of the rounding mode of the thread.
constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT;
// With a full mask: g++ 12 reports the unmasked forms as reads of uninitialised memory.
constexpr __mmask16 kAllLanes = 0xffff;

__attribute__((target("avx,f16c"))) void to_f16_f16c(const float* source, F16* target, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), kNearestEven);
    const __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(source + i + 8), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i + 8), high);
  }
  to_f16_portable(source + i, target + i, count - i);
}

__attribute__((target("avx,f16c"))) void to_f32_f16c(const F16* source, float* target, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i + 8));
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(low));
    _mm256_storeu_ps(target + i + 8, _mm256_cvtph_ps(high));
  }
  to_f32_portable(source + i, target + i, count - i);
}

__attribute__((target("avx512f"))) void to_f16_avx512(const float* source, F16* target, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i low = _mm512_maskz_cvtps_ph(kAllLanes, _mm512_loadu_ps(source + i), kNearestEven);
    const __m256i high = _mm512_maskz_cvtps_ph(kAllLanes, _mm512_loadu_ps(source + i + 16), kNearestEven);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i + 16), high);
  }
  to_f16_portable(source + i, target + i, count - i);
}

__attribute__((target("avx512f"))) void to_f32_avx512(const F16* source, float* target, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 16));
    _mm512_storeu_ps(target + i, _mm512_maskz_cvtph_ps(kAllLanes, low));
    _mm512_storeu_ps(target + i + 16, _mm512_maskz_cvtph_ps(kAllLanes, high));
  }
  to_f32_portable(source + i, target + i, count - i);
}

#endif

}  // namespace

std::span<const F16Path> internal::f16_paths() noexcept {
  struct Paths {
    std::array<F16Path, 3> list{};
    std::size_t count = 0;
  };
  static const Paths paths = [] {
    Paths found;
#ifdef BERTH_F16_X86
    if (__builtin_cpu_supports("avx512f")) found.list[found.count++] = {"avx512", to_f16_avx512, to_f32_avx512};
    if (__builtin_cpu_supports("avx") && has_f16c()) found.list[found.count++] = {"f16c", to_f16_f16c, to_f32_f16c};
#endif
    found.list[found.count++] = {"portable", to_f16_portable, to_f32_portable};
    return found;
  }();
  return {paths.list.data(), paths.count};
}

F16 to_f16(float value) noexcept {
  return {half_bits(std::bit_cast<std::uint32_t>(value))};
}

float to_f32(F16 value) noexcept {
  return std::bit_cast<float>(float_bits(value.bits));
}

void to_f16(std::span<const float> source, std::span<F16> target) noexcept {
  assert(source.size() == target.size());
  f16_paths().front().narrow(source.data(), target.data(), source.size());
}

void to_f32(std::span<const F16> source, std::span<float> target) noexcept {
  assert(source.size() == target.size());
  f16_paths().front().widen(source.data(), target.data(), source.size());
}

std::string_view f16_instructions() noexcept {
  return f16_paths().front().name;
}

}  // namespace berth
