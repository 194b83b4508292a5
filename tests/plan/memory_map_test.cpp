#include "berth/plan/memory_map.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>

namespace berth {
namespace {

std::string fact(const MapPanel& panel, std::string_view name) {
  for (const auto& [key, value] : panel.facts)
    if (key == name) return value;
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(MemoryMap, DrawsARectangleForEachStretchOfALife) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .first = 0, .last = 9, .gaps = {{2, 4}, {8, 9}}, .label = "gappy"},
                       {.bytes = 32, .first = 2, .last = 4},
                       {.bytes = 0, .first = 0, .last = 9}};
  MemoryPlan plan;
  plan.slots = {{0, 64, 0}, {0, 32, 0}, {}};
  plan.blocks = {{64, 0, 0}};
  plan.size = plan.lower_bound = 64;
  plan.optimal = true;
  const std::vector<std::string> ids = {"a", "b", "c"};
  const MapPanel panel = map_panel(problem, plan, ids);
  ASSERT_EQ(panel.rectangles.size(), 3u);
  EXPECT_EQ(panel.rectangles[0].last, 2);
  EXPECT_EQ(panel.rectangles[1].first, 4);
  EXPECT_EQ(panel.rectangles[1].last, 8);
  EXPECT_EQ(panel.rectangles[2].node, 1u);
  EXPECT_EQ(panel.names, (std::vector<std::string>{"gappy", "b", "c"}));
  EXPECT_EQ(fact(panel, "gap"), "0, proven optimal");
  EXPECT_EQ(fact(panel, "buffers"), "2");
}

TEST(MemoryMap, LetsRootsLiveAsLongAsTheirAliasesAndPinnedOnesAlways) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .first = 2, .last = 3},
                       {.bytes = 16, .first = 3, .last = 5, .alias = AliasOf{0, 0}},
                       {.bytes = 64, .first = 0, .last = 1, .pinned = true},
                       {.bytes = 8, .first = 0, .last = 9}};
  MemoryPlan plan;
  plan.slots = {{0, 64, 0}, {0, 16, 0}, {64, 64, 0}, {128, 8, 0}};
  plan.blocks = {{136, 0, 0}};
  plan.size = 136;
  plan.lower_bound = 100;
  const MapPanel panel = map_panel(problem, plan);
  ASSERT_EQ(panel.rectangles.size(), 3u);
  EXPECT_EQ(panel.rectangles[0].last, 5);
  EXPECT_EQ(panel.rectangles[1].first, 0);
  EXPECT_EQ(panel.rectangles[1].last, 9);
  ASSERT_EQ(panel.notes.size(), 1u);
  EXPECT_TRUE(has(panel.notes[0], "1 alias"));
  EXPECT_EQ(fact(panel, "gap"), "36 %");
}

TEST(MemoryMap, NamesBlocksByBankAndLane) {
  PlanProblem problem;
  problem.banks = {{"sram", 64}, {"dram", 0}};
  problem.capacity = 1024;
  problem.lifetimes = {{.bytes = 64, .first = 0, .last = 1}, {.bytes = 64, .first = 0, .last = 1, .lane = 1}};
  MemoryPlan plan;
  plan.slots = {{0, 64, 0}, {0, 64, 1}};
  plan.blocks = {{64, 0, 0}, {64, 1, 1}};
  plan.size = 128;
  plan.strategy = "by hand";
  const MapPanel panel = map_panel(problem, plan);
  ASSERT_EQ(panel.blocks.size(), 2u);
  EXPECT_EQ(panel.blocks[0].name, "block 0, sram");
  EXPECT_EQ(panel.blocks[1].name, "block 1, dram, lane 1");
  EXPECT_EQ(fact(panel, "capacity"), "1.0 KiB");
  EXPECT_EQ(fact(panel, "found by"), "by hand");
  // Blocks are drawn one above the other: the second starts where the first ends.
  const std::string page = memory_map_html({.panels = {panel}});
  EXPECT_TRUE(has(page, "\"offset\":[0,64]"));
  EXPECT_TRUE(has(page, "\"block\":[0,1]"));
  EXPECT_TRUE(has(page, "\"base\":64,\"bytes\":64"));
}

TEST(MemoryMap, WritesItsTitlesAndItsUnitUnderTheirNames) {
  const std::string page = memory_map_html({.title = "one", .subtitle = "two", .time_unit = "three"});
  EXPECT_TRUE(has(page, "{\"title\":\"one\",\"subtitle\":\"two\",\"unit\":\"three\",\"panels\":["));
}

TEST(MemoryMap, LetsNoNameEndTheScript) {
  MapPanel panel;
  panel.title = "</script><b>";
  panel.names = {"a\"b\\c\n</script>\x01", "caf\xc3\xa9", "\xc3", "\xf0\x9f\x90\x8b", "\xed"};
  panel.rectangles = {{0, 0, 0, 8, 0, 1}};
  const std::string page = memory_map_html({.title = "<i>", .panels = {panel}});
  EXPECT_TRUE(has(page, "\"a\\u0022b\\u005cc\\u000a\\u003c/script\\u003e\\u0001\""));
  EXPECT_TRUE(has(page, "\"caf\xc3\xa9\",\"\\ufffd\",\"\xf0\x9f\x90\x8b\",\"\\ufffd\""));
  std::size_t ends = 0;
  for (std::size_t at = page.find("</script>"); at != std::string::npos; at = page.find("</script>", at + 1)) ++ends;
  EXPECT_EQ(ends, 2u);
}

TEST(MemoryMap, MakesBlocksAsHighAsWhatWasSeenInThem) {
  MapPanel panel;
  panel.rectangles = {{0, 1, 100, 50, 0, 1}, {0, 0, 0, 10, 0, 1}};
  panel.blocks = {{"region", 20}};
  panel.held = 1000;
  const std::string page = memory_map_html({.panels = {panel}});
  EXPECT_TRUE(has(
      page,
      "\"blocks\":[{\"name\":\"region\",\"base\":0,\"bytes\":20},{\"name\":\"block 1\",\"base\":20,\"bytes\":150}]"));
  EXPECT_TRUE(has(page, "\"size\":1000,\"bound\":null"));
  EXPECT_TRUE(has(page, "\"offset\":[120,0]"));
  EXPECT_TRUE(has(page, "\"node\":[0,0]"));
}

TEST(MemoryMap, LoadsNothingFromElsewhere) {
  const std::string page = memory_map_html({.panels = {MapPanel{}}});
  for (const char* part : {"http:", "https:", "src=", "@import", "url(", "/*STYLE*/", "/*DATA*/", "/*SCRIPT*/"})
    EXPECT_FALSE(has(page, part)) << part;
}

TEST(MemoryMap, WritesAFileAndSaysWhenItCannot) {
  const std::string path = testing::TempDir() + "berth_report_test.html";
  ASSERT_TRUE(write_memory_map(path, {.title = "To a file"}));
  std::ifstream in(path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_TRUE(has(text, "\"title\":\"To a file\""));
  std::remove(path.c_str());
  const auto refused = write_memory_map("/nowhere/map.html", {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kIo);
}

}  // namespace
}  // namespace berth
