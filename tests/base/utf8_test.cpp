#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/seed.h"

namespace berth::internal {
namespace {

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
