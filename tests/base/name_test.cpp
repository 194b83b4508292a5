#include "berth/base/name.h"

#include <gtest/gtest.h>

#include "berth/memory/label_counters.h"

namespace berth {
namespace {

TEST(Names, AreEqualExactlyWhenTheirTextsAre) {
  EXPECT_EQ(Name("weights"), Name(std::string("wei") + "ghts"));
  EXPECT_FALSE(Name("weights") == Name("logits"));
  EXPECT_EQ(Name("weights").text(), "weights");
  EXPECT_FALSE(Name());
  EXPECT_EQ(Name().text(), "");
  EXPECT_EQ(Name(""), Name());
  EXPECT_EQ(Name::from_id(Name("x").id()), Name("x"));
}

TEST(LabelCounters, GroupLabelsThatDifferInTheirLastNumber) {
  LabelCounters counters;
  for (int i = 0; i < 12; ++i) counters.add(Name("kv-cache " + std::to_string(i)), 32);
  counters.add(Name("logits"), 61);
  counters.add(Name(), 5);
  counters.add(Name("gone"), 1000);
  counters.remove(Name("gone"), 1000);
  const auto holders = counters.holders();
  ASSERT_EQ(holders.size(), 3u);
  EXPECT_EQ(holders[0].label, "kv-cache 0..11");
  EXPECT_EQ(holders[0].bytes, 384u);
  EXPECT_EQ(holders[0].count, 12u);
  EXPECT_EQ(holders[1].label, "logits");
  EXPECT_EQ(holders[2].label, "(no label)");
}

TEST(LabelCounters, TellLabelsApartThatDifferInMoreThanTheirLastNumber) {
  LabelCounters counters;
  counters.add(Name("layer1"), 40);
  counters.add(Name("layer9"), 40);
  counters.add(Name("head1"), 20);  // a letter stands before the number
  counters.add(Name("7"), 10);
  counters.add(Name("a/1"), 2);  // '/' and ':' are the characters beside the digits
  counters.add(Name("a:1"), 1);
  const auto holders = counters.holders();
  ASSERT_EQ(holders.size(), 5u);
  EXPECT_EQ(holders[0].label, "layer1..9");
  EXPECT_EQ(holders[0].bytes, 80u);
  EXPECT_EQ(holders[1].label, "head1");
  EXPECT_EQ(holders[2].label, "7");
  EXPECT_EQ(holders[3].label, "a/1");
  EXPECT_EQ(holders[4].label, "a:1");
}

}  // namespace
}  // namespace berth
