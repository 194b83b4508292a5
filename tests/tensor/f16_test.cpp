#include "berth/tensor/f16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/seed.h"
#include "tensor/f16_paths.h"

namespace berth {

using namespace internal;

namespace {

// What a half means, from the definition alone.
double value_of(std::uint16_t half) {
  const int exponent = half >> 10 & 0x1f;
  const double mantissa = half & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// Slow and obvious: the nearest of all halves, found by bisection over the magnitudes.
std::uint16_t nearest_half(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    const auto payload = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 13 & 0x3ff);
    return static_cast<std::uint16_t>(sign | 0x7e00 | payload);
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  // Infinity takes the place of the value that would follow the largest finite one.
  const auto reach = [](std::uint16_t half) { return half == 0x7c00 ? 65536.0 : value_of(half); };
  std::uint16_t low = 0, high = 0x7c00;
  if (magnitude >= reach(high)) return static_cast<std::uint16_t>(sign | high);
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (reach(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - reach(low), above = reach(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

void expect_same_as_reference(const std::vector<float>& values) {
  std::vector<std::uint16_t> expected;
  for (const float value : values) expected.push_back(nearest_half(value));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(to_f16(values[i]).bits, expected[i]) << "of " << values[i];
  for (const F16Path& path : f16_paths()) {
    std::vector<F16> halves(values.size());
    path.narrow(values.data(), halves.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(halves[i].bits, expected[i]) << "of " << values[i] << " with " << path.name;
  }
}

TEST(F16, GivesEveryHalfItsValue) {
  std::vector<F16> halves;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) halves.push_back({static_cast<std::uint16_t>(bits)});
  for (const F16Path& path : f16_paths()) {
    std::vector<float> floats(halves.size());
    path.widen(halves.data(), floats.data(), floats.size());
    for (const F16 half : halves)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(to_f32(half)), std::bit_cast<std::uint32_t>(floats[half.bits]))
          << half.bits << " with " << path.name;
  }
  for (const F16 half : halves) {
    const float one = to_f32(half);
    const int magnitude = half.bits & 0x7fff;
    if (magnitude > 0x7c00)
      ASSERT_TRUE(std::isnan(one)) << half.bits;
    else if (magnitude == 0x7c00)
      ASSERT_EQ(std::fabs(one), std::numeric_limits<float>::infinity()) << half.bits;
    else
      ASSERT_EQ(static_cast<double>(one), value_of(half.bits)) << half.bits;
    ASSERT_EQ(std::signbit(one), (half.bits & 0x8000) != 0) << half.bits;
  }
}

TEST(F16, BringsAllHalvesBackUnchangedExceptThatNansBecomeQuiet) {
  std::vector<F16> halves;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) halves.push_back({static_cast<std::uint16_t>(bits)});
  std::vector<float> floats(halves.size());
  std::vector<F16> back(halves.size());
  to_f32(halves, floats);
  to_f16(floats, back);
  for (const F16 half : halves) {
    const bool is_nan = (half.bits & 0x7fff) > 0x7c00;
    const int expected = half.bits | (is_nan ? 0x200 : 0);
    ASSERT_EQ(back[half.bits].bits, expected);
    ASSERT_EQ(to_f16(to_f32(half)).bits, expected);
  }
}

TEST(F16, RoundsToNearestEvenAtAndBesideEveryBoundary) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double here = value_of(static_cast<std::uint16_t>(bits));
    const double next = bits + 1 == 0x7c00 ? 65536.0 : value_of(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((here + next) / 2);  // exact: one bit more than a half has
    for (const float sign : {1.0f, -1.0f}) {
      values.push_back(sign * static_cast<float>(here));
      values.push_back(sign * middle);
      values.push_back(sign * std::nextafter(middle, 0.0f));
      values.push_back(sign * std::nextafter(middle, 1e9f));
    }
  }
  expect_same_as_reference(values);
}

TEST(F16, UsesTheFirstPathOfThisMachine) {
  EXPECT_EQ(f16_instructions(), f16_paths().front().name);
  EXPECT_EQ(f16_paths().back().name, "portable");
}

TEST(F16, OverflowsToInfinityAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_f16(infinity).bits, 0x7c00);
  // A signalling NaN whose payload lies below what a half keeps must not turn into infinity.
  EXPECT_EQ(to_f16(std::bit_cast<float>(0x7f80'0001u)).bits, 0x7e00);
  EXPECT_EQ(to_f16(std::bit_cast<float>(0xff80'2000u)).bits, 0xfe01);
}

TEST(F16, AgreesWithTheReferenceOnEveryExponentWithMixedMantissas) {
  std::mt19937 random(test::seed());
  std::vector<float> values;
  for (std::uint32_t top = 0; top < 0x200; ++top)
    for (int i = 0; i < 200; ++i)
      values.push_back(std::bit_cast<float>(top << 23 | static_cast<std::uint32_t>(random() & 0x7f'ffffu)));
  expect_same_as_reference(values);
}

TEST(F16, ConvertsEveryLengthAndAlignmentAndNothingBesideIt) {
  std::vector<float> source(130);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i) + 0.5f;
  for (std::size_t start = 0; start < 3; ++start)
    for (std::size_t count = 0; count + start <= 100; ++count) {
      for (const F16Path& path : f16_paths()) {
        std::vector<F16> halves(104, F16{0xbeef});
        path.narrow(source.data() + start, halves.data() + start, count);
        std::vector<float> floats(104, -7.0f);
        path.widen(halves.data() + start, floats.data() + start, count);
        for (std::size_t i = 0; i < halves.size(); ++i) {
          const bool inside = i >= start && i < start + count;
          ASSERT_EQ(halves[i].bits, inside ? nearest_half(source[i]) : 0xbeef) << path.name;
          ASSERT_EQ(floats[i], inside ? source[i] : -7.0f) << path.name;
        }
      }
    }
}

}  // namespace
}  // namespace berth
