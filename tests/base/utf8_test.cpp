#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/seed.h"

namespace berth::internal {
namespace {

// Whether no character begins after the first byte.
bool sequence_begins_once(std::string_view text) {
  for (const char each : text.substr(1))
    if (static_cast<unsigned char>(each) >> 6 != 2) return false;
  return true;
}

// The definition: the bits of the lead byte give the length, and the value must need that length, be no surrogate and
// be at most U+10FFFF.
bool is_one_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80       ? 1
                             : byte(0) >> 5 == 6  ? 2
                             : byte(0) >> 4 == 14 ? 3
                             : byte(0) >> 3 == 30 ? 4
                                                  : 0;
  if (length != text.size()) return false;
  std::uint32_t point = length == 1 ? byte(0) : byte(0) & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return false;
    point = point << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return point >= kLeast[length] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
}

TEST(Utf8, IsJudgedAsItsDefinitionSays) {
  // Every byte where the rules change, and some that are nowhere near.
  const unsigned char bytes[] = {0x00, 0x41, 0x7F, 0x80, 0x81, 0x8F, 0x90, 0x91, 0x9F, 0xA0,
                                 0xA1, 0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC,
                                 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  std::size_t whole = 0;
  for (const unsigned char a : bytes)
    for (const unsigned char b : bytes)
      for (const unsigned char c : bytes)
        for (const unsigned char d : bytes)
          for (std::size_t length = 2; length <= 4; ++length) {
            const char text[] = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                                 static_cast<char>(d)};
            const std::string_view one(text, length);
            if (static_cast<unsigned char>(one[0]) < 0x80) continue;
            ASSERT_EQ(first_invalid_utf8(one) == length && sequence_begins_once(one), is_one_character(one))
                << std::hex << +a << ' ' << +b << ' ' << +c << ' ' << +d << " of " << length;
            whole += is_one_character(one);
          }
  EXPECT_GT(whole, 1000u);
}

TEST(Printable, LeavesTextAlone) {
  for (const char* text : {"", "plain", "\"quotes\" and \\", "Grüße, 世界 🚢", "a b"}) EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(printable("a\r\n\t\x7f"), "a\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m")
      << "one character that begins a command";
  EXPECT_EQ(printable("\xc2\xa0"), "\xc2\xa0");
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae") << "right to left from here";
  EXPECT_EQ(printable("\xe2\x81\xa6\xd8\x9c"), "\\xe2\\x81\\xa6\\xd8\\x9c");
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Printable, KeepsLinesWhereToldTo) {
  EXPECT_EQ(printable("one\ntwo\x1b", true), "one\ntwo\\x1b");
}

TEST(Printable, AndQuotedGiveSafeTextForAnyBytes) {
  std::mt19937 random(test::seed());
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 12, '\0');
    for (char& c : text) c = static_cast<char>(random() % 4 == 0 ? 0x80 + random() % 0x80 : random());
    for (const std::string& shown : {printable(text), internal::quoted(text)}) {
      ASSERT_EQ(first_invalid_utf8(shown), shown.size());
      for (std::size_t at = 0; at < shown.size(); ++at) {
        const auto byte = static_cast<unsigned char>(shown[at]);
        ASSERT_TRUE(byte >= 0x20 && byte != 0x7f);
        const bool c1 = byte == 0xc2 && static_cast<unsigned char>(shown[at + 1]) < 0xa0;
        ASSERT_FALSE(c1);
      }
    }
  }
}

}  // namespace
}  // namespace berth::internal
