#include "run/pieces.h"

#include <gtest/gtest.h>

#include <random>

namespace berth::internal::replay {
namespace {

using Row = std::vector<std::uint64_t>;

// What an engine does that unfolds its input up to a border, and works in blocks beyond it.
std::uint64_t workspace(std::uint64_t frames) {
  return frames < 257 ? 2048 * frames : 65'536;
}

Pieces pieces_at(const Row& frames) {
  Row values;
  for (const std::uint64_t n : frames) values.push_back(workspace(n));
  return Pieces(std::vector<Row>{Row(frames.size(), 1), frames}, values);
}

TEST(Pieces, AreMultiplesOfAKnownQuantityOnEachSideOfABorder) {
  const Pieces pieces = pieces_at({40, 900, 100, 500, 700, 800});
  for (const std::uint64_t n : {40, 77, 100, 500, 631, 900}) {
    const auto found = pieces(Row{1, n});
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->certain) << n;
    EXPECT_EQ(found->most, workspace(n));
    EXPECT_EQ(found->least, workspace(n));
  }
  EXPECT_EQ(pieces(Row{1, 7})->most, workspace(7)) << "before the first sample";
  EXPECT_EQ(pieces(Row{1, 7000})->most, workspace(7000)) << "after the last";
}

TEST(Pieces, BoundTheBytesFromBothSidesWhereTheBorderMayBe) {
  const Pieces pieces = pieces_at({40, 900, 100, 500, 700});
  for (std::uint64_t n = 101; n < 500; ++n) {
    const auto found = pieces(Row{1, n});
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->certain) << n;
    EXPECT_LE(found->least, workspace(n));
    EXPECT_GE(found->most, workspace(n));
  }
}

TEST(Pieces, OneSampleIsAConstantOrGrowsWithTheOrder) {
  const Pieces pieces = pieces_at({100, 500, 600, 700, 800, 900});
  const auto below = pieces(Row{1, 50}), above = pieces(Row{1, 200});
  ASSERT_TRUE(below && above);
  EXPECT_FALSE(below->certain);
  EXPECT_GT(below->least, 2048u * 40);
  EXPECT_LE(below->least, 2048u * 50);
  EXPECT_EQ(below->most, 2048u * 100);
  EXPECT_LE(above->least, 65'536u);
  EXPECT_GE(above->most, 2048u * 200);
  EXPECT_LE(above->most, 2048u * 210);
}

TEST(Pieces, RoundUpToTheUnitOfBytesThatComeInSteps) {
  const auto blocks = [](std::uint64_t n) { return (n + 127) / 128 * 4096; };
  const Row at{50, 200, 300, 450, 700};
  Row values;
  for (const std::uint64_t n : at) values.push_back(blocks(n));
  const Pieces pieces(std::vector<Row>{Row(at.size(), 1), at}, values);
  for (std::uint64_t n = 1; n < 2000; ++n) {
    const auto found = pieces(Row{1, n});
    ASSERT_TRUE(found);
    EXPECT_GE(found->most, blocks(n)) << n;
    EXPECT_LE(found->most, blocks(n) + 4 * 4096) << n;
  }
}

TEST(Pieces, AreOrderedByTheQuantityThatNeedsTheFewest) {
  // The border is one of the area, which neither side alone decides.
  std::mt19937 random(7);
  std::vector<Row> known(4);
  Row values;
  const auto bytes = [](std::uint64_t area) { return area < 50'000 ? 36 * area : 65'536; };
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t h = 32 + random() % 600, w = 32 + random() % 600;
    const Row column{1, h, w, h * w};
    for (std::size_t q = 0; q < column.size(); ++q) known[q].push_back(column[q]);
    values.push_back(bytes(h * w));
  }
  const Pieces pieces(known, values);
  EXPECT_TRUE(pieces.explain());
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t h = 32 + random() % 600, w = 32 + random() % 600;
    const auto found = pieces(Row{1, h, w, h * w});
    ASSERT_TRUE(found);
    EXPECT_GE(found->most, bytes(h * w)) << h << " x " << w;
    EXPECT_LE(found->least, bytes(h * w)) << h << " x " << w;
  }
}

TEST(Pieces, KnowWhichSamplesShowWhereTheBordersAre) {
  const Pieces pieces = pieces_at({40, 900, 100, 500, 700, 60, 800});
  const std::vector<bool> expected{true, true, true, true, false, false, false};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(pieces.shows_a_border(i), expected[i]) << i;
}

TEST(Pieces, DoNotExplainWhatHasNoStructure) {
  EXPECT_FALSE(Pieces(std::vector<Row>{{1, 1, 1, 1}, {10, 20, 30, 40}}, Row{701, 13, 977, 401}).explain());
}

TEST(Pieces, SayNothingWhereANumberBecomesTooLarge) {
  const Pieces pieces(std::vector<Row>{{1, 1}, {1, 2}}, Row{std::uint64_t{1} << 40, std::uint64_t{1} << 41});
  EXPECT_FALSE(pieces(Row{1, std::uint64_t{1} << 40}));
  EXPECT_TRUE(pieces(Row{1, 1000}));
}

}  // namespace
}  // namespace berth::internal::replay
