#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/seed.h"

namespace berth::internal {
namespace {

std::uint64_t checksum_of(std::string_view text) {
  Checksum sum;
  sum.add(text);
  return sum.value();
}

std::string random_text(std::mt19937& random, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(Checksum, DoesNotDependOnHowTheBytesWereCut) {
  for (const unsigned seed : test::seeds(200)) {
    std::mt19937 random(seed);
    const std::string text = random_text(random, random() % 300);
    Checksum pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t bytes = std::min<std::size_t>(random() % 70, text.size() - at);
      pieces.add(std::string_view(text).substr(at, bytes));
      at += bytes;
    }
    ASSERT_EQ(pieces.value(), checksum_of(text)) << "seed " << seed;
    ASSERT_EQ(pieces.value(), checksum_of(text)) << "asking twice gives the same";
  }
}

TEST(Checksum, FindsEveryChangeOfOneOrTwoBits) {
  std::mt19937 random(test::seed());
  const std::string text = random_text(random, 131);
  const std::uint64_t whole = checksum_of(text);
  const auto flipped = [](std::string of, std::size_t bit) {
    of[bit / 8] = static_cast<char>(of[bit / 8] ^ (1 << bit % 8));
    return of;
  };
  for (std::size_t a = 0; a < text.size() * 8; ++a) {
    const std::string once = flipped(text, a);
    ASSERT_NE(checksum_of(once), whole) << a;
    for (std::size_t b = a + 1; b < text.size() * 8; b += 1 + random() % 7)
      ASSERT_NE(checksum_of(flipped(once, b)), whole) << a << " and " << b;
    // The highest bits of words, which a multiplication alone would leave where they are.
    for (std::size_t b = a + 64; b < text.size() * 8; b += 64) ASSERT_NE(checksum_of(flipped(once, b)), whole) << a;
  }
}

TEST(Checksum, TellsZerosAtTheEndFromNone) {
  std::string zeros;
  std::vector<std::uint64_t> seen;
  for (int i = 0; i < 100; ++i, zeros += '\0') seen.push_back(checksum_of(zeros));
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(Checksum, TellsSwappedBlocksApart) {
  const std::string a(32, 'a'), b(32, 'b');
  EXPECT_NE(checksum_of(a + b), checksum_of(b + a));
  EXPECT_NE(checksum_of("12345678"
                        "abcdefgh"),
            checksum_of("abcdefgh"
                        "12345678"));
}

}  // namespace
}  // namespace berth::internal
