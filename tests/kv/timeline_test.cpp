// When pages were in use, for the memory map.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "berth/kv/cache.h"
#include "berth/kv/recording.h"
#include "berth/memory/registry.h"
#include "berth/plan/memory_map.h"
#include "support/seed.h"

namespace berth::kv {
namespace {

std::unique_ptr<Cache> cache_of(std::vector<Group> groups, std::size_t budget, std::size_t uses,
                                const std::string& record_to = {}) {
  CacheOptions options;
  options.groups = std::move(groups);
  options.block_tokens = 4;
  options.budget = budget;
  options.eviction = make_lru_eviction();
  options.timeline_uses = uses;
  options.record_to = record_to;
  return Cache::make(device("CPU").value(), std::move(options)).value();
}

const std::vector<Group> kFull{{.name = Name("full"), .bytes_per_token = 64}};

TEST(KvTimeline, DrawsAPageFromTheCallThatTookItToTheOneThatGaveItBack) {
  const auto cache = cache_of(kFull, 8 * 256, 100);
  const std::vector<Token> tokens(6, 1);
  const Opened first = cache->open(tokens).value();   // call 1
  ASSERT_TRUE(cache->commit(first.id));               // call 2
  const Opened second = cache->open(tokens).value();  // call 3: shares a block, and takes a page
  ASSERT_EQ(second.cached_tokens, 4u);
  ASSERT_TRUE(cache->close(first.id));  // call 4: its half-written page goes
  const MapPanel panel = cache->timeline();
  ASSERT_EQ(panel.rectangles.size(), 3u);
  const auto name = [&](std::size_t i) { return panel.names[panel.rectangles[i].node]; };
  EXPECT_EQ(name(0), "full, sequence 0");
  EXPECT_EQ(name(1), "full, sequence 0");
  EXPECT_EQ(name(2), "full, sequence 1");
  EXPECT_EQ(panel.rectangles[0].first, 1);
  EXPECT_EQ(panel.rectangles[0].last, 5) << "still in use after call 4";
  EXPECT_EQ(panel.rectangles[1].first, 1);
  EXPECT_EQ(panel.rectangles[1].last, 4);
  EXPECT_EQ(panel.rectangles[2].first, 3);
  for (const MapRectangle& one : panel.rectangles) EXPECT_EQ(one.bytes, 256u);
  EXPECT_EQ(panel.held, 8u * 256);
}

TEST(KvTimeline, IsEmptyUnlessItIsAskedFor) {
  const auto cache = cache_of(kFull, 8 * 256, 0);
  ASSERT_TRUE(cache->open(std::vector<Token>(6, 1)));
  EXPECT_TRUE(cache->timeline().rectangles.empty());
}

TEST(KvTimeline, LeavesOutWhatIsMoreThanItKeeps) {
  const auto cache = cache_of(kFull, 8 * 256, 3);
  ASSERT_TRUE(cache->open(std::vector<Token>(20, 1)));
  const MapPanel panel = cache->timeline();
  EXPECT_EQ(panel.rectangles.size(), 3u);
  EXPECT_NE(panel.notes.back().find("2 later uses"), std::string::npos) << panel.notes.back();
}

TEST(KvTimeline, NeverDrawsTwoPagesOverOneAnother) {
  std::mt19937 random(static_cast<std::uint32_t>(test::seed()));
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  const auto cache =
      cache_of({{.name = Name("full"), .bytes_per_token = 64},
                {.name = Name("window"), .kind = GroupKind::kWindow, .bytes_per_token = 128, .window = 6},
                {.name = Name("state"), .kind = GroupKind::kState, .state_bytes = 768}},
               20 * 768, 10'000);
  std::vector<SequenceId> open;
  for (int step = 0; step < 400; ++step) {
    const std::uint32_t what = below(10);
    if (what < 3 || open.empty()) {
      std::vector<Token> tokens(1 + below(12), static_cast<Token>(below(2)));
      if (const auto opened = cache->open(tokens)) open.push_back(opened->id);
    } else if (what < 8) {
      std::vector<std::int64_t> slots(3);
      const Token token = 1;
      static_cast<void>(cache->append({&open[below(static_cast<std::uint32_t>(open.size()))], 1}, {&token, 1}, slots));
    } else if (what == 8) {
      if (const auto forked = cache->fork(open[below(static_cast<std::uint32_t>(open.size()))]))
        open.push_back(*forked);
    } else {
      const std::size_t at = below(static_cast<std::uint32_t>(open.size()));
      ASSERT_TRUE(cache->close(open[at]));
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  const MapPanel panel = cache->timeline();
  std::uint64_t pages = 0, drawn = 0;
  for (const auto& group : cache->counters().groups) pages += group.pages_in_use + group.pages_cached;
  std::int64_t end = 0;
  for (const MapRectangle& one : panel.rectangles) end = std::max(end, one.last);
  for (std::size_t i = 0; i < panel.rectangles.size(); ++i) {
    const MapRectangle& a = panel.rectangles[i];
    drawn += a.last == end ? 1 : 0;
    ASSERT_LT(a.first, a.last);
    for (std::size_t j = 0; j < i; ++j) {
      const MapRectangle& b = panel.rectangles[j];
      const bool apart =
          a.last <= b.first || b.last <= a.first || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
      ASSERT_TRUE(apart) << panel.names[a.node] << " and " << panel.names[b.node] << ", seed " << test::seed();
    }
  }
  EXPECT_EQ(drawn, pages) << "what is in use at the end";
}

TEST(KvTimeline, ShowsARecordingAsAMemoryMap) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string calls = (folder / ("berth_timeline_" + std::to_string(test::seed()) + ".kv")).string();
  const std::string page = (folder / ("berth_timeline_" + std::to_string(test::seed()) + ".html")).string();
  {
    const auto cache = cache_of(kFull, 8 * 256, 0, calls);
    const Opened opened = cache->open(std::vector<Token>(6, 1)).value();
    ASSERT_TRUE(cache->close(opened.id));
  }
  const auto again = cache_of(kFull, 8 * 256, 100);
  EXPECT_EQ(run_cache_recording(read_cache_recording(calls).value(), *again).opened, 1u);
  MemoryMap map{.title = "A recording", .time_unit = "call"};
  map.panels.push_back(again->timeline());
  ASSERT_TRUE(write_memory_map(page, map));
  std::ostringstream text;
  text << std::ifstream(page).rdbuf();
  EXPECT_NE(text.str().find("full, sequence 0"), std::string::npos);
  std::filesystem::remove(calls);
  std::filesystem::remove(page);
}

}  // namespace
}  // namespace berth::kv
