#include "remote/shard_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "berth/remote/sharding.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;
using test::TemporaryFolder;
using ::testing::HasSubstr;

TEST(ShardRules, AreReadFromText) {
  const auto rules = parse_shard_rules(
      "# a comment\n\n  *.q_proj.weight\trow unit 128 # heads\r\n#.w expert\nnorm replicated\n*.o column");
  EXPECT_EQ(rules.value(), (std::vector<ShardRule>{{"*.q_proj.weight", ShardKind::kRow, 128},
                                                   {"#.w", ShardKind::kExpert},
                                                   {"norm", ShardKind::kReplicated},
                                                   {"*.o", ShardKind::kColumn}}));
  EXPECT_EQ(parse_shard_rules(to_string(std::span(*rules))).value(), *rules);
  EXPECT_TRUE(parse_shard_rules("").value().empty());
}

TEST(ShardRules, NameTheLineThatIsWrong) {
  for (const char* text : {"a row\nb\n", "a row\nb rows\n", "a row\nb row unit\n", "a row\nb row unit 0\n",
                           "a row\nb row unit -1\n", "a row\nb row unit 1x\n", "a row\nb row by 2\n",
                           "a row\nb row unit 99999999999999999999\n", "a row\nb row unit 2 3\n"}) {
    const auto rules = parse_shard_rules(text);
    ASSERT_TRUE(fails_with(rules, Code::kInvalidData)) << text;
    EXPECT_THAT(rules.error().message(), HasSubstr("line 2")) << text;
  }
}

TEST(ShardRules, QuoteWhatIsNotUnderstoodAsItIsWritten) {
  EXPECT_THAT(parse_shard_rules("a row by\n").error().message(), HasSubstr("\"by\" is not understood"));
  EXPECT_THAT(parse_shard_rules("a row by 2 # x\n").error().message(), HasSubstr("\"by 2\" is not understood"));
}

TEST(ShardRules, AreReadFromAFile) {
  const TemporaryFolder folder;
  const std::string text = "a row\n";
  const std::string path = folder.write("rules", std::as_bytes(std::span(text)));
  EXPECT_EQ(read_shard_rules(path).value().size(), 1U);
  EXPECT_TRUE(fails_with(read_shard_rules(path + ".absent"), Code::kNotFound));
  const std::string bad = "a\n";
  const auto refused = read_shard_rules(folder.write("bad", std::as_bytes(std::span(bad))));
  ASSERT_TRUE(fails_with(refused, Code::kInvalidData));
  EXPECT_THAT(refused.error().message(), HasSubstr("bad: line 1"));
}

TEST(ShardRules, FitNames) {
  const auto fits = [](std::string_view pattern, std::string_view name) {
    std::optional<std::uint64_t> number;
    return internal::fits(pattern, name, number);
  };
  for (const auto& [pattern, name] : std::vector<std::pair<const char*, const char*>>{{"a", "a"},
                                                                                      {"*", ""},
                                                                                      {"*", "anything"},
                                                                                      {"", ""},
                                                                                      {"a*c", "abbbc"},
                                                                                      {"a*c", "acbc"},
                                                                                      {"*.w", "layers.0.w"},
                                                                                      {"a?c", "abc"},
                                                                                      {"*a*b*", "xxaxxbxx"},
                                                                                      {"e.#.w", "e.12.w"},
                                                                                      {"*.#", "x.1.2"},
                                                                                      {"*#", "x12"}})
    EXPECT_TRUE(fits(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : std::vector<std::pair<const char*, const char*>>{{"a", "b"},
                                                                                      {"a", "ab"},
                                                                                      {"ab", "a"},
                                                                                      {"", "a"},
                                                                                      {"a?", "a"},
                                                                                      {"a*c", "abcd"},
                                                                                      {"e.#.w", "e..w"},
                                                                                      {"e.#.w", "e.x.w"},
                                                                                      {"#", "#"},
                                                                                      {"#", "99999999999999999999"},
                                                                                      {"?#", "12"}})
    EXPECT_FALSE(fits(pattern, name)) << pattern << " " << name;
  std::optional<std::uint64_t> number;
  ASSERT_TRUE(internal::fits("layers.*.experts.#.*", "layers.3.experts.17.w1", number));
  EXPECT_EQ(number, 17U);
  number.reset();
  ASSERT_TRUE(internal::fits("*.#.w", "1.2.w3.4.w", number));
  EXPECT_EQ(number, 4U);
}

}  // namespace
}  // namespace berth
