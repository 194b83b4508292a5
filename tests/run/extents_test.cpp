#include "run/extents.h"

#include <gtest/gtest.h>

#include <limits>

namespace berth::internal::replay {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

TEST(Extents, GrowOnlyIfNoneFallsAndSomeRises) {
  EXPECT_EQ(difference({1, 64, 2}, {1, 67, 5}), (Extents{0, 3, 3}));
  EXPECT_TRUE(difference({1, 64}, {1, 64}).empty());
  EXPECT_TRUE(difference({1, 64}, {2, 63}).empty());
  EXPECT_TRUE(difference({1, 64}, {1, 64, 3}).empty()) << "of another number of inputs";
  EXPECT_TRUE(difference({-kLargest}, {kLargest}).empty()) << "too far for a number";
}

TEST(Extents, AdvanceUntilANumberBecomesTooLarge) {
  EXPECT_EQ(advance({1, 64}, {0, 2}, 16), (Extents{1, 96}));
  EXPECT_FALSE(advance({1}, {kLargest / 2}, 3));
  EXPECT_FALSE(advance({kLargest}, {1}, 1));
}

TEST(Extents, AreOnTheWayIfAllHaveGoneTheSamePartOfIt) {
  const Extents from{1, 64, 128}, to{1, 96, 192};
  EXPECT_TRUE(on_the_way(from, to, from));
  EXPECT_TRUE(on_the_way(from, to, to));
  EXPECT_TRUE(on_the_way(from, to, {1, 65, 130}));
  EXPECT_FALSE(on_the_way(from, to, {1, 65, 129})) << "beside it";
  EXPECT_FALSE(on_the_way(from, to, {2, 65, 130})) << "another batch";
  EXPECT_FALSE(on_the_way(from, to, {1, 97, 194})) << "beyond it";
  EXPECT_FALSE(on_the_way(from, to, {1, 63, 126}));
  EXPECT_FALSE(on_the_way(from, to, {1, 64}));
  EXPECT_TRUE(on_the_way({0, 0}, {kLargest, kLargest}, {kLargest - 1, kLargest - 1})) << "the products fit";
}

}  // namespace
}  // namespace berth::internal::replay
