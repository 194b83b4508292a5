#include "run/exact_fit.h"

#include <gtest/gtest.h>

#include <random>

#include "support/seed.h"

namespace berth::internal::replay {
namespace {

using Points = std::vector<std::vector<std::int64_t>>;

template <class Function>
std::vector<std::uint64_t> at(const Points& points, Function&& function) {
  std::vector<std::uint64_t> values;
  for (const auto& point : points) values.push_back(function(point));
  return values;
}

// True if some function was found and all that were found give this value, or none, at `point`.
::testing::AssertionResult all_give(const std::vector<ExactFunction>& found, const std::vector<std::int64_t>& point,
                                    std::uint64_t expected) {
  bool some = false;
  for (const ExactFunction& function : found) {
    const auto value = function(point);
    if (value && *value != expected) return ::testing::AssertionFailure() << *value << " instead of " << expected;
    some = some || value.has_value();
  }
  return some ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "nothing found";
}

TEST(ExactFit, FindsAProductOfDimensionsFromTwoSamples) {
  const Points points{{320, 480}, {640, 352}};
  const auto bytes = [](const auto& p) { return static_cast<std::uint64_t>(p[0] * p[1] / 64 * 12); };
  FunctionFinder finder(points);
  EXPECT_TRUE(all_give(finder.fit(at(points, bytes), 48), {960, 1280}, bytes(std::vector<std::int64_t>{960, 1280})));
}

TEST(ExactFit, FindsAConstantAndALineWithAnOffset) {
  const Points points{{5}, {6}, {7}};
  FunctionFinder finder(points);
  EXPECT_TRUE(all_give(finder.fit(std::vector<std::uint64_t>{96, 96, 96}, 48), {1000}, 96));
  EXPECT_TRUE(all_give(finder.fit(std::vector<std::uint64_t>{36, 40, 44}, 48), {1000}, 4016));
}

TEST(ExactFit, FindsWhatAConvolutionWithoutPaddingNeeds) {
  const Points points{{32, 64}, {48, 32}, {96, 80}, {64, 112}, {128, 48}, {80, 144}};
  const auto bytes = [](const auto& p) { return static_cast<std::uint64_t>(4 * (p[0] - 2) * (p[1] - 2)); };
  FunctionFinder finder(points);
  EXPECT_TRUE(all_give(finder.fit(at(points, bytes), 48), {512, 80}, 4u * 510 * 78));
}

TEST(ExactFit, FindsBatchesOfImagesThatConvolutionsWithoutPaddingAndPoolsMakeSmaller) {
  std::mt19937 random(test::seed());
  const auto draw = [&] {
    return std::vector<std::int64_t>{static_cast<std::int64_t>(1 + random() % 60),
                                     static_cast<std::int64_t>(20 + random() % 100),
                                     static_cast<std::int64_t>(20 + random() % 100)};
  };
  for (int turn = 0; turn < 20; ++turn) {
    Points points;
    for (int i = 0; i < 6; ++i) points.push_back(draw());
    FunctionFinder finder(points);
    const auto convolve = [](std::int64_t x) { return x - 2; };
    const auto halve = [](std::int64_t x) { return (x + 1) / 2; };
    const auto once = [&](std::int64_t x) { return convolve(x); };
    const auto twice = [&](std::int64_t x) { return convolve(halve(convolve(x))); };
    const auto thrice = [&](std::int64_t x) { return convolve(twice(x)); };
    const auto check = [&](const auto& side) {
      const auto bytes = [&](const auto& p) { return static_cast<std::uint64_t>(40 * p[0] * side(p[1]) * side(p[2])); };
      const std::vector<ExactFunction> found = finder.fit(at(points, bytes), 48);
      for (int i = 0; i < 20; ++i) {
        const std::vector<std::int64_t> point = draw();
        EXPECT_TRUE(all_give(found, point, bytes(point))) << point[0] << ' ' << point[1] << ' ' << point[2];
      }
    };
    check(once);
    check(twice);
    check(thrice);
  }
}

TEST(ExactFit, FindsTheSquareThatAttentionNeeds) {
  const Points points{{1, 16}, {2, 24}, {4, 40}, {3, 64}};
  const auto bytes = [](const auto& p) { return static_cast<std::uint64_t>(p[0] * 8 * p[1] * p[1] * 4); };
  FunctionFinder finder(points);
  EXPECT_TRUE(all_give(finder.fit(at(points, bytes), 48), {7, 120}, 7u * 8 * 120 * 120 * 4));
}

TEST(ExactFit, FindsAStrideThatRoundsUpOnceASampleShowsIt) {
  const Points points{{100}, {101}, {103}, {106}};
  const auto bytes = [](const auto& p) { return static_cast<std::uint64_t>((p[0] + 3) / 4 * 48); };
  FunctionFinder finder(points);
  EXPECT_TRUE(all_give(finder.fit(at(points, bytes), 48), {333}, 84u * 48));
}

TEST(ExactFit, FindsTheFramesOfSoundThatOverlap) {
  const Points points{{16'000}, {24'001}, {40'123}, {51'239}, {9'600}, {33'333}, {72'727}, {60'607}};
  const auto bytes = [](const auto& p) { return static_cast<std::uint64_t>(4 * 32 * ((p[0] - 512) / 160 + 1)); };
  FunctionFinder finder(points);
  EXPECT_TRUE(all_give(finder.fit(at(points, bytes), 48), {123'456}, bytes(std::vector<std::int64_t>{123'456})));
}

TEST(ExactFit, GivesNothingForWhatIsNoFunctionOfTheDimensions) {
  const Points points{{1}, {2}, {3}, {4}, {5}, {6}, {7}};
  FunctionFinder finder(points);
  EXPECT_TRUE(finder.fit(std::vector<std::uint64_t>{7, 1, 9, 2, 100, 3, 50}, 48).empty());
}

TEST(ExactFit, NeverNeedsAsManyTermsAsThereAreSamples) {
  const Points points{{10}, {20}};
  FunctionFinder finder(points);
  for (const ExactFunction& function : finder.fit(std::vector<std::uint64_t>{7, 9}, 48))
    EXPECT_LT(function.monomials.size(), 2u);
}

TEST(ExactFit, RefusesValuesThatOverflow) {
  const Points points{{1}, {2}, {3}};
  FunctionFinder finder(points);
  EXPECT_TRUE(finder.fit(std::vector<std::uint64_t>{~std::uint64_t{0}, 1, 2}, 48).empty());
  const auto line = finder.fit(std::vector<std::uint64_t>{1u << 30, 2u << 30, 3u << 30}, 48);
  ASSERT_FALSE(line.empty());
  for (const ExactFunction& function : line)
    EXPECT_FALSE(function(std::vector<std::int64_t>{std::int64_t{1} << 62}).has_value());
}

TEST(ExactFit, FindsRandomFunctionsOfTheFamilyExactly) {
  unsigned found = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const std::size_t variables = 1 + seed % 2;
    const std::int64_t stride = std::int64_t{1} << (random() % 4), factor = 4 * (1 + random() % 64);
    const std::int64_t offset = seed % 3 == 0 ? 1 + random() % 5 : 0;
    const auto bytes = [&](const std::vector<std::int64_t>& p) {
      std::int64_t product = factor;
      for (const std::int64_t x : p) product *= (x + stride - 1) / stride + offset;
      return static_cast<std::uint64_t>(product);
    };
    Points points;
    for (int i = 0; i < 10; ++i) {
      points.emplace_back();
      for (std::size_t v = 0; v < variables; ++v) points.back().push_back(20 + random() % 400);
    }
    FunctionFinder finder(points);
    const auto functions = finder.fit(at(points, bytes), 48);
    for (int i = 0; i < 20; ++i) {
      std::vector<std::int64_t> point;
      for (std::size_t v = 0; v < variables; ++v) point.push_back(20 + random() % 2000);
      found += all_give(functions, point, bytes(point)) ? 1 : 0;
    }
  }
  EXPECT_GE(found, 60u * 20u * 95 / 100) << "a rounding that no sample tells from another may go wrong";
}

TEST(Combine, SolvesExactlyAndRefusesContradictionsAndDependence) {
  const std::vector<std::int64_t> ones{1, 1, 1}, x{2, 5, 11}, twice{4, 10, 22};
  const std::vector<std::span<const std::int64_t>> columns{ones, x}, dependent{x, twice};
  const std::vector<std::int64_t> line{7, 13, 25}, no_line{7, 13, 26};
  const auto solved = combine(columns, line);
  ASSERT_TRUE(solved);
  EXPECT_TRUE(solved->numerators[0] == 3 * solved->denominator);
  EXPECT_TRUE(solved->numerators[1] == 2 * solved->denominator);
  EXPECT_FALSE(combine(columns, no_line));
  EXPECT_FALSE(combine(dependent, line));
}

}  // namespace
}  // namespace berth::internal::replay
