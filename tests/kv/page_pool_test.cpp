#include "berth/kv/page_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace berth::kv {
namespace {

std::vector<std::size_t> sizes(std::initializer_list<std::size_t> list) {
  return list;
}

TEST(PagePool, GivesEveryPageOfOneGroupOnce) {
  auto pool = PagePool::make(sizes({256}), 256 * 150).value();
  std::set<Page> pages;
  for (Page page = pool.take(0); page != kNoPage; page = pool.take(0)) pages.insert(page);
  EXPECT_EQ(pages.size(), 150u);
  EXPECT_EQ(*pages.begin(), 0);
  EXPECT_EQ(*pages.rbegin(), 149);
  EXPECT_EQ(pool.capacity(0), 150u);
  EXPECT_TRUE(pool.check().has_value());
  for (const Page page : pages) pool.give(0, page);
  EXPECT_EQ(pool.live(0), 0u);
  EXPECT_TRUE(pool.check().has_value());
}

TEST(PagePool, NeverGivesOutAReservedFirstPage) {
  for (const auto& list : {sizes({64}), sizes({64, 192})}) {
    auto pool = PagePool::make(list, 192 * 5, {.reserve_first = true}).value();
    for (std::uint32_t g = 0; g < pool.groups(); ++g) {
      std::uint64_t count = 0;
      std::vector<Page> taken;
      for (Page page = pool.take(g); page != kNoPage; page = pool.take(g)) {
        EXPECT_NE(page, 0);
        taken.push_back(page);
        ++count;
      }
      EXPECT_EQ(count, pool.capacity(g));
      for (const Page page : taken) pool.give(g, page);
    }
    EXPECT_TRUE(pool.check().has_value());
  }
}

TEST(PagePool, TellsThePagesThatAreLiveFromAllOthers) {
  auto pool = PagePool::make(sizes({64, 192}), 192 * 5).value();
  const Page small = pool.take(0), large = pool.take(1);
  EXPECT_TRUE(pool.is_live(0, small));
  EXPECT_TRUE(pool.is_live(1, large));
  EXPECT_FALSE(pool.is_live(1, small / 3)) << "of the other group";
  EXPECT_FALSE(pool.is_live(0, large * 3)) << "of the other group";
  EXPECT_FALSE(pool.is_live(0, small + 1)) << "beside it";
  EXPECT_FALSE(pool.is_live(2, small)) << "there is no such group";
  for (const Page outside : {Page{-1}, Page{15}, Page{1'000'000}, std::numeric_limits<Page>::max()})
    EXPECT_FALSE(pool.is_live(0, outside)) << outside;
  for (const Page outside : {Page{5}, Page{1'000'000}}) EXPECT_FALSE(pool.is_live(1, outside)) << outside;
  pool.give(0, small);
  EXPECT_FALSE(pool.is_live(0, small));
}

TEST(PagePool, HasALargePageThatIsTheCommonMultiple) {
  const auto pool = PagePool::make(sizes({2 * 64, 3 * 64, 4 * 64}), 12 * 64 * 10).value();
  EXPECT_EQ(pool.large_bytes(), 12u * 64);
  EXPECT_EQ(pool.pages_per_large(0), 6u);
  EXPECT_EQ(pool.pages_per_large(1), 4u);
  EXPECT_EQ(pool.pages_per_large(2), 3u);
  EXPECT_EQ(pool.page_bytes(1), 192u);
}

TEST(PagePool, RoundsAwkwardSizesUpByAFewPercent) {
  // The least common multiple of these is thousands of pages.
  for (const auto& list :
       {sizes({64 * 1009, 64 * 1013}), sizes({64 * 997, 64 * 17, 64 * 8191}), sizes({64, 64 * 7919})}) {
    const auto pool = PagePool::make(list, std::size_t{1} << 32).value();
    for (std::uint32_t g = 0; g < pool.groups(); ++g) {
      EXPECT_GE(pool.page_bytes(g), list[g]);
      EXPECT_LE(static_cast<double>(pool.page_bytes(g)), static_cast<double>(list[g]) * 1.05) << g;
      EXPECT_EQ(pool.page_bytes(g) * pool.pages_per_large(g), pool.large_bytes());
    }
  }
}

TEST(PagePool, RefusesWhatCannotBeDivided) {
  const auto code = [](const auto& result) { return result.error().code(); };
  EXPECT_EQ(code(PagePool::make({}, 1000)), Code::kInvalidArgument);
  EXPECT_EQ(code(PagePool::make(sizes({0}), 1000)), Code::kInvalidArgument);
  EXPECT_EQ(code(PagePool::make(sizes({64}), 1000, {.alignment = 48})), Code::kInvalidArgument);
  EXPECT_EQ(code(PagePool::make(sizes({~std::size_t{0}}), 1000)), Code::kInvalidArgument);
  EXPECT_EQ(code(PagePool::make(sizes({~std::size_t{0} / 300, 64}), 1000)), Code::kOutOfMemory);
  EXPECT_EQ(code(PagePool::make(sizes({64}), 0)), Code::kOutOfMemory);
  EXPECT_EQ(code(PagePool::make(sizes({64}), 64, {.reserve_first = true})), Code::kOutOfMemory);
  EXPECT_EQ(code(PagePool::make(sizes({64}), ~std::size_t{0})), Code::kInvalidArgument);
}

TEST(PagePool, MovesPagesUntilNoGroupKeepsMoreThanPartOfALargePage) {
  auto pool = PagePool::make(sizes({64, 128}), 128 * 8).value();
  std::vector<Page> small;
  for (int i = 0; i < 16; ++i) small.push_back(pool.take(0));
  ASSERT_EQ(pool.take(0), kNoPage);
  // One page remains in each of the eight large pages.
  std::set<Page> live;
  for (const Page page : small) {
    if (page % 2 == 0)
      pool.give(0, page);
    else
      live.insert(page);
  }
  EXPECT_EQ(pool.take(1), kNoPage);
  const std::vector<std::uint64_t> four{0, 4}, five{0, 5};
  EXPECT_TRUE(pool.fits(four));
  EXPECT_FALSE(pool.fits(five));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pool.make_room(1, [&](const PagePool::Move& move) {
      EXPECT_EQ(live.erase(move.from), 1u);
      EXPECT_TRUE(live.insert(move.to).second);
      return true;
    }));
    EXPECT_NE(pool.take(1), kNoPage);
  }
  EXPECT_FALSE(pool.make_room(1, [](const PagePool::Move&) { return true; }));
  for (const Page page : live) EXPECT_TRUE(pool.is_live(0, page));
  EXPECT_EQ(live.size(), 8u);
  EXPECT_TRUE(pool.check().has_value());
}

TEST(PagePool, KeepsAPageWhoseMoveFailed) {
  auto pool = PagePool::make(sizes({64, 128}), 128 * 2).value();
  std::vector<Page> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(pool.take(0));
  pool.give(0, pages[0]);
  pool.give(0, pages[2]);
  EXPECT_FALSE(pool.make_room(1, [](const PagePool::Move&) { return false; }));
  EXPECT_TRUE(pool.is_live(0, pages[1]));
  EXPECT_TRUE(pool.is_live(0, pages[3]));
  EXPECT_EQ(pool.live(0), 2u);
  EXPECT_TRUE(pool.check().has_value());
}

// Any sequence of takes and gives agrees with a set of byte ranges that may not overlap, and a refusal means that the
// free pages of every other group are less than one large page.
RC_GTEST_PROP(PagePoolProperty, HoldsDisjointPagesAndRefusesOnlyWhatDoesNotFit, ()) {
  const auto groups = *rc::gen::inRange<std::size_t>(1, 5);
  std::vector<std::size_t> list;
  for (std::size_t g = 0; g < groups; ++g) list.push_back(64 * *rc::gen::inRange<std::size_t>(1, 40));
  const bool reserve = *rc::gen::arbitrary<bool>();
  const auto made = PagePool::make(list, *rc::gen::inRange<std::size_t>(1, 64 * 40 * 60), {.reserve_first = reserve});
  if (!made) {
    RC_ASSERT(made.error().code() == Code::kOutOfMemory);
    return;
  }
  PagePool pool = *made;
  std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
  std::vector<std::pair<std::uint32_t, Page>> live;
  std::map<std::size_t, std::size_t> ranges;  // first byte -> end
  const auto insert = [&](std::uint32_t g, Page page) {
    const std::size_t first = static_cast<std::size_t>(page) * pool.page_bytes(g), end = first + pool.page_bytes(g);
    RC_ASSERT(end <= pool.bytes());
    const auto after = ranges.lower_bound(first);
    // RC_ASSERT evaluates the whole expression.
    if (after != ranges.end()) RC_ASSERT(after->first >= end);
    if (after != ranges.begin()) RC_ASSERT(std::prev(after)->second <= first);
    ranges[first] = end;
  };
  for (int step = 0; step < 400; ++step) {
    const auto g = static_cast<std::uint32_t>(random() % groups);
    if (random() % 5 < 3 || live.empty()) {
      std::vector<std::uint64_t> one(groups);
      one[g] = 1;
      const bool fits = pool.fits(one);
      Page page = pool.take(g);
      while (page == kNoPage && pool.make_room(g, [&](const PagePool::Move& move) {
        ranges.erase(static_cast<std::size_t>(move.from) * pool.page_bytes(move.group));
        insert(move.group, move.to);
        for (auto& [group, at] : live)
          if (group == move.group && at == move.from) at = move.to;
        return true;
      }))
        page = pool.take(g);
      RC_ASSERT((page != kNoPage) == fits);
      if (page == kNoPage) continue;
      RC_ASSERT(!(reserve && page == 0));
      insert(g, page);
      live.emplace_back(g, page);
    } else {
      std::swap(live[random() % live.size()], live.back());
      pool.give(live.back().first, live.back().second);
      ranges.erase(static_cast<std::size_t>(live.back().second) * pool.page_bytes(live.back().first));
      live.pop_back();
    }
  }
  RC_ASSERT(pool.check().has_value());
  std::uint64_t total = 0;
  for (std::uint32_t g = 0; g < groups; ++g) total += pool.live(g);
  RC_ASSERT(total == live.size());
}

}  // namespace
}  // namespace berth::kv
