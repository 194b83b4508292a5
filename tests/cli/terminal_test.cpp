#include "terminal.h"

#include <gtest/gtest.h>

namespace berth::cli {
namespace {

TEST(Terminal, AlignsNumbersRightAndWordsLeft) {
  Table table;
  table.row({"name", "bytes", "bar"});
  table.row({"caf\xc3\xa9", "1,024", "█"});
  table.row({"b", "7", ""});
  EXPECT_EQ(table.str(), "name  bytes  bar\ncaf\xc3\xa9  1,024  █\nb         7\n");
}

TEST(Terminal, DrawsBarsInEighths) {
  EXPECT_EQ(bar(0.5, 4), "██  ");
  EXPECT_EQ(bar(0.53125, 4), "██▏ ");
  EXPECT_EQ(bar(1.0, 2), "██");
  EXPECT_EQ(bar(7.0, 2), "██");
  EXPECT_EQ(bar(-1.0, 2), "  ");
}

TEST(Terminal, CountsColumnsNotBytes) {
  EXPECT_EQ(columns("caf\xc3\xa9 █"), 6u);
}

TEST(Terminal, ReadsByteSizesAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("18446744073709551615"), 18446744073709551615u);
  EXPECT_EQ(parse_bytes("256K"), 262144u);
  EXPECT_EQ(parse_bytes("256KiB"), 262144u);
  EXPECT_EQ(parse_bytes("1.5MiB"), 1572864u);
  EXPECT_EQ(parse_bytes("2GB"), 2147483648u);
  for (const char* text : {"", "x", "-1", "1.5", "1 K", "1Q", "1KiBs", "99999999999999999999", "16E", "nan", "inf"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(Terminal, WritesNumbersForPeople) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1048576), "1,048,576");
  EXPECT_EQ(format_seconds(12e-6), "12 us");
  EXPECT_EQ(format_seconds(0.00231), "2.31 ms");
  EXPECT_EQ(format_seconds(4.2), "4.20 s");
}

TEST(Terminal, IsNoTerminalInATest) {
  std::FILE* const file = std::tmpfile();
  EXPECT_FALSE(is_terminal(file));
  std::fclose(file);
}

}  // namespace
}  // namespace berth::cli
