#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "alloc/caching_pool/biased_lock.h"
#include "alloc/caching_pool/size_class.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/fault.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/statistics.h"
#include "berth/berth.h"
#include "doubles/lagging_device.h"
#include "memory/poison.h"
#include "support/seed.h"

namespace berth {

using namespace internal;

namespace {

AllocatorPtr cpu() {
  return device("CPU").value();
}

Block take(Allocator& allocator, const BlockSpec& spec) {
  return allocator.allocate(spec).value();
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(SizeClass, IsNeverSmallerThanItsSizesAndAtMostAnEighthLarger) {
  for (std::size_t bytes = 1; bytes < std::size_t{1} << 36; bytes = bytes + bytes / 7 + 1) {
    const std::size_t rounded = class_bytes(size_class(bytes));
    EXPECT_GE(rounded, bytes);
    EXPECT_LT(rounded - bytes, bytes <= 512 ? 64 : bytes / 8 + 1) << bytes;
    EXPECT_EQ(size_class(rounded), size_class(bytes));
  }
}

TEST(CachingPool, GivesWhatWasAskedToAThreadThatTurnsBetweenKindsOfRequests) {
  const auto cache = make_caching_pool(cpu());
  const BlockSpec kinds[] = {{.bytes = 4096},
                             {.bytes = 4096, .usage = Usage::kAll},
                             {.bytes = 4096, .tag = "other"},
                             {.bytes = 4096, .host = HostAccess::kRequired}};
  for (int round = 0; round < 3; ++round) {
    for (const BlockSpec& kind : kinds) {
      const Block block = take(*cache, kind);
      EXPECT_EQ(block.usage, kind.usage) << "round " << round;
      EXPECT_EQ(cache->counters(kind.tag).live_bytes, 4096u) << "round " << round;
      cache->release(block);
      EXPECT_EQ(cache->counters(kind.tag).live_bytes, 0u) << "round " << round;
    }
  }
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, HandsTheSameMemoryOutAgainWithoutAskingBelow) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below);
  const Block first = take(*cache, {.bytes = 5000});
  cache->release(first);
  const Block second = take(*cache, {.bytes = 4990});
  EXPECT_EQ(second.handle, first.handle);
  EXPECT_EQ(second.bytes, 4990u) << "a block says what was asked for";
  EXPECT_EQ(below->counters().allocations, 1u);
  EXPECT_EQ(cache->counters().hits, 1u);
  EXPECT_EQ(cache->counters().misses, 1u);
  cache->release(second);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, ReturnsToTheLayerBelowExactlyTheBlocksItGot) {
  const auto inner = make_caching_pool(cpu());
  const auto outer = make_caching_pool(inner);
  std::vector<Block> blocks;
  for (std::size_t i = 1; i < 50; ++i) blocks.push_back(take(*outer, {.bytes = i * 1000}));
  for (const Block& block : blocks) outer->release(block);
  outer->trim();
  EXPECT_EQ(inner->counters().refused_releases, 0u);
  EXPECT_EQ(inner->counters().live_count, 0u);
}

TEST(CachingPool, RefusesABlockReturnedTwice) {
  const auto cache = make_caching_pool(cpu());
  const Block block = take(*cache, {.bytes = 4096});
  cache->release(block);
  cache->release(block);
  EXPECT_EQ(cache->counters().refused_releases, 1u);
  const Block a = take(*cache, {.bytes = 4096});
  const Block b = take(*cache, {.bytes = 4096});
  EXPECT_NE(a.handle, b.handle) << "the same memory was handed out twice";
  cache->release(block);  // an old key, though its memory is live again
  EXPECT_EQ(cache->counters().refused_releases, 2u);
  EXPECT_EQ(cache->counters().live_count, 2u);
  cache->release(a);
  cache->release(b);
}

TEST(CachingPool, RefusesABlockOfAnotherPool) {
  const auto mine = make_caching_pool(cpu());
  const auto other = make_caching_pool(cpu());
  const Block block = take(*mine, {.bytes = 4096});
  const Block foreign = take(*other, {.bytes = 4096});
  mine->release(foreign);
  EXPECT_EQ(mine->counters().refused_releases, 1u);
  mine->release({.handle = 1, .bytes = 1, .key = 0xffffff});
  mine->release({.handle = 1, .bytes = 1});
  EXPECT_EQ(mine->counters().refused_releases, 3u);
  mine->release(block);
  other->release(foreign);
}

TEST(CachingPool, KeepsOptionsAndTagsApart) {
  const auto cache = make_caching_pool(cpu());
  const Block plain = take(*cache, {.bytes = 4096});
  cache->release(plain);
  for (const BlockSpec& spec :
       {BlockSpec{.bytes = 4096, .usage = Usage::kAll}, BlockSpec{.bytes = 4096, .host = HostAccess::kRequired},
        BlockSpec{.bytes = 4096, .alignment = 4096}, BlockSpec{.bytes = 4096, .tag = "other"}}) {
    const Block block = take(*cache, spec);
    EXPECT_NE(block.handle, plain.handle);
    EXPECT_EQ(block.usage, spec.usage);
    cache->release(block);
    const Block again = take(*cache, spec);
    EXPECT_EQ(again.handle, block.handle);
    cache->release(again);
  }
  const Block small_alignment = take(*cache, {.bytes = 4096, .alignment = 8});
  EXPECT_EQ(small_alignment.handle, plain.handle) << "small alignments share";
  cache->release(small_alignment);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, CountsAndTrimsATagByItself) {
  const auto cache = make_caching_pool(cpu());
  const Block a = take(*cache, {.bytes = 64 * 1024, .tag = "a"});
  const Block b = take(*cache, {.bytes = 128 * 1024, .tag = "b"});
  const Block b2 = take(*cache, {.bytes = 128 * 1024, .tag = "b"});
  EXPECT_EQ(cache->counters("a").live_bytes, 64u * 1024);
  EXPECT_EQ(cache->counters("b").live_bytes, 256u * 1024);
  cache->release(a);
  cache->release(b);
  cache->release(b2);
  EXPECT_EQ(cache->counters("b").cached_bytes, 256u * 1024);
  EXPECT_EQ(cache->counters("b").peak_bytes, 256u * 1024);
  EXPECT_EQ(cache->counters("a").peak_bytes, 64u * 1024);
  EXPECT_EQ(cache->trim_tag("b"), 256u * 1024);
  EXPECT_EQ(cache->counters("b").cached_bytes, 0u);
  EXPECT_EQ(cache->counters("a").cached_bytes, 64u * 1024);
  EXPECT_EQ(cache->counters().cached_bytes, 64u * 1024);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, KnowsItsPeakExactlyWhenOneThreadAllocates) {
  const auto cache = make_caching_pool(cpu());
  std::vector<Block> blocks;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) blocks.push_back(take(*cache, {.bytes = 4096, .tag = i % 2 == 0 ? "even" : "odd"}));
    for (const Block& block : blocks) cache->release(block);
    blocks.clear();
  }
  EXPECT_EQ(cache->counters().peak_bytes, 20u * 4096);
  for (int i = 0; i < 21; ++i) blocks.push_back(take(*cache, {.bytes = 4096, .tag = "even"}));
  for (const Block& block : blocks) cache->release(block);
  EXPECT_EQ(cache->counters().peak_bytes, 21u * 4096);
  EXPECT_EQ(cache->counters().live_bytes, 0u);
}

TEST(CachingPool, KnowsItsPeaksExactlyWhenRequestsOfManyKindsTakeTurns) {
  struct Held {
    Block block;
    std::size_t bytes, tag;
  };
  const Name tags[] = {"first", "second"};
  const auto cache = make_caching_pool(cpu());
  std::minstd_rand random(test::seed());
  std::vector<Held> held;
  std::size_t live = 0, peak = 0, live_of[2] = {}, peak_of[2] = {};
  for (int i = 0; i < 20'000; ++i) {
    // Now and then most goes, so that several kinds come to the peak by turns.
    const bool ebb = i / 64 % 2 != 0;
    if (held.empty() || random() % 8 < (ebb ? 2u : 6u)) {
      const std::size_t tag = random() % 2, bytes = (1 + random() % 4) * 4096;
      const Usage usage = random() % 2 == 0 ? Usage::kDefault : Usage::kAll;
      held.push_back({take(*cache, {.bytes = bytes, .usage = usage, .tag = tags[tag]}), bytes, tag});
      peak = std::max(peak, live += bytes);
      peak_of[tag] = std::max(peak_of[tag], live_of[tag] += bytes);
    } else {
      std::swap(held[random() % held.size()], held.back());
      cache->release(held.back().block);
      live -= held.back().bytes;
      live_of[held.back().tag] -= held.back().bytes;
      held.pop_back();
    }
    if (i % 16 != 0) continue;  // asking does not help the pool to know
    ASSERT_EQ(cache->counters().peak_bytes, peak) << i;
    for (const std::size_t tag : {0, 1}) ASSERT_EQ(cache->counters(tags[tag]).peak_bytes, peak_of[tag]) << i;
  }
  EXPECT_EQ(cache->counters().live_bytes, live);
  for (const Held& each : held) cache->release(each.block);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, KeepsItsCacheWithinTheBound) {
  const auto cache = make_caching_pool(cpu(), {.max_cached_bytes = kMiB});
  for (int round = 0; round < 4; ++round) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < 100; ++i) blocks.push_back(take(*cache, {.bytes = (1 + i % 7) * 32 * 1024}));
    for (const Block& block : blocks) {
      cache->release(block);
      EXPECT_LE(cache->counters().cached_bytes, kMiB);
    }
    ASSERT_TRUE(cache->check().has_value()) << cache->check().error().message();
  }
  EXPECT_GT(cache->counters().cached_bytes, kMiB / 2);
}

TEST(CachingPool, KeepsItsCacheWithinTheBoundAcrossThreads) {
  const auto cache = make_caching_pool(cpu(), {.max_cached_bytes = kMiB});
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        std::vector<Block> blocks;
        for (std::size_t i = 0; i < 30; ++i) blocks.push_back(take(*cache, {.bytes = (1 + i % 7) * 16 * 1024}));
        for (const Block& block : blocks) cache->release(block);
      }
    });
  threads.clear();
  EXPECT_LE(cache->counters().cached_bytes, kMiB);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, NeverCachesBlocksPastItsLargestSize) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below, {.max_block_bytes = 10'000});
  const Block block = take(*cache, {.bytes = 10'001});
  EXPECT_EQ(below->counters().live_bytes, 10'001u) << "and does not round them";
  cache->release(block);
  EXPECT_EQ(below->counters().live_bytes, 0u);
  EXPECT_EQ(cache->counters().live_bytes, 0u);
}

TEST(CachingPool, ServesNoRequestPastItsLargestSizeFromTheCache) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below, {.max_block_bytes = 10'000});
  cache->release(take(*cache, {.bytes = 10'000}));
  EXPECT_EQ(below->counters().live_bytes, 10'240u) << "the largest size itself is rounded and cached";
  const Block past = take(*cache, {.bytes = 10'001});
  EXPECT_EQ(below->counters().live_bytes, 10'240u + 10'001u);
  cache->release(past);
  const Block within = take(*cache, {.bytes = 10'000});
  EXPECT_EQ(below->counters().allocations, 2u);
  EXPECT_EQ(cache->counters().hits, 1u);
  cache->release(within);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, TrimsDownToWhatItMayKeep) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below);
  std::vector<Block> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(take(*cache, {.bytes = 65'536}));
  for (const Block& block : blocks) cache->release(block);
  EXPECT_EQ(cache->trim(3 * 65'536), 7u * 65'536);
  EXPECT_EQ(below->counters().live_bytes, 3u * 65'536);
  EXPECT_EQ(cache->trim(), 3u * 65'536);
  EXPECT_EQ(cache->trim(), 0u);
}

TEST(CachingPool, TakesBackWhatAnotherThreadKeeps) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below);
  std::atomic<int> step{0};
  std::jthread other([&] {
    cache->release(take(*cache, {.bytes = 65'536}));
    step = 1;
    step.notify_all();
    step.wait(1);
    cache->release(take(*cache, {.bytes = 65'536}));  // its own cache still works
  });
  step.wait(0);
  EXPECT_EQ(cache->trim(), 65'536u);
  EXPECT_EQ(below->counters().live_bytes, 0u);
  step = 2;
  step.notify_all();
  other.join();
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, SharesWhatAThreadKeptWhenTheThreadEnds) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below);
  cache->release(take(*cache, {.bytes = 64}));  // this thread has a cache, and does not come into the other's
  std::jthread([&] { cache->release(take(*cache, {.bytes = 65'536})); }).join();
  cache->release(take(*cache, {.bytes = 65'536}));
  EXPECT_EQ(below->counters().allocations, 2u);
  EXPECT_EQ(cache->counters().hits, 1u);
  EXPECT_EQ(cache->counters().live_bytes, 0u);
}

TEST(CachingPool, CountsWhatIsLiveWhenItsThreadIsGoneAndAnotherTakesItsPlace) {
  const auto cache = make_caching_pool(cpu());
  std::vector<Block> blocks;
  std::jthread([&] {
    for (int i = 0; i < 3; ++i) blocks.push_back(take(*cache, {.bytes = 65'536}));
    cache->release(blocks.back());
    blocks.pop_back();
  }).join();
  EXPECT_EQ(cache->counters().live_bytes, 2u * 65'536);
  EXPECT_TRUE(cache->check().has_value());
  std::jthread([&] {
    blocks.push_back(take(*cache, {.bytes = 65'536}));
    EXPECT_EQ(cache->counters().hits, 1u);
    for (const Block& block : blocks) cache->release(block);
    for (const Block& block : blocks) cache->release(block);
    EXPECT_EQ(cache->counters().refused_releases, 3u);
  }).join();
  EXPECT_EQ(cache->counters().live_bytes, 0u);
  EXPECT_EQ(cache->counters().peak_bytes, 3u * 65'536);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, TakesABlockBackFromAThreadThatHadItBefore) {
  const auto cache = make_caching_pool(cpu());
  Block block = take(*cache, {.bytes = 4096});
  cache->release(block);
  block = take(*cache, {.bytes = 4096});  // the last one that this thread was given
  std::atomic<int> step{0};
  std::jthread other([&] {
    cache->release(block);
    block = take(*cache, {.bytes = 4096});  // the same memory, and now the other thread's
    step = 1;
    step.notify_all();
    step.wait(1);
    const Block fresh = take(*cache, {.bytes = 4096});
    EXPECT_EQ(fresh.handle != block.handle, BiasedLock::is_usable()) << "the thread that returned it keeps it";
    cache->release(fresh);
  });
  step.wait(0);
  cache->release(block);
  EXPECT_TRUE(cache->check().has_value());
  step = 2;
  step.notify_all();
  other.join();
  const Block again = take(*cache, {.bytes = 4096});
  EXPECT_EQ(again.handle, block.handle);
  cache->release(again);
}

TEST(CachingPool, HoldsLittleWhenOneThreadAllocatesWhatAnotherReleases) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{512} << 10}) {
    const auto below = make_statistics(cpu());
    const auto cache = make_caching_pool(below);
    constexpr std::size_t kTogether = 32;
    std::vector<Block> handed(kTogether);
    std::atomic<int> turn{0};
    constexpr int kTurns = 400;
    std::jthread consumer([&] {
      for (int i = 0; i < kTurns; ++i) {
        while (turn.load() != 2 * i + 1) std::this_thread::yield();
        for (const Block& block : handed) cache->release(block);
        turn = 2 * i + 2;
      }
    });
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load() != 2 * i) std::this_thread::yield();
      for (Block& block : handed) block = take(*cache, {.bytes = bytes});
      turn = 2 * i + 1;
    }
    consumer.join();
    EXPECT_LE(below->counters().allocations, 10 * kTogether) << bytes;
    EXPECT_EQ(cache->counters().live_count, 0u);
    EXPECT_TRUE(cache->check().has_value());
  }
}

TEST(CachingPool, MayGoBeforeTheThreadsThatUsedIt) {
  const auto below = make_statistics(cpu());
  std::atomic<int> step{0};
  auto cache = make_caching_pool(below);
  std::jthread other([&] {
    cache->release(take(*cache, {.bytes = 65'536}));
    step = 1;
    step.notify_all();
    step.wait(1);
    // Another pool, in the place where the first one was.
    const auto fresh = make_caching_pool(below);
    fresh->release(take(*fresh, {.bytes = 65'536}));
  });
  step.wait(0);
  cache.reset();
  EXPECT_EQ(below->counters().live_bytes, 0u);
  step = 2;
  step.notify_all();
  other.join();
  EXPECT_EQ(below->counters().live_bytes, 0u);
}

TEST(CachingPool, ServesMorePoolsThanAThreadRemembers) {
  std::vector<std::shared_ptr<CachingPool>> pools;
  for (int i = 0; i < 10; ++i) pools.push_back(make_caching_pool(cpu()));
  for (int round = 0; round < 3; ++round)
    for (const auto& each : pools) each->release(take(*each, {.bytes = 100}));
  for (const auto& each : pools) EXPECT_EQ(each->counters().hits, 2u);
}

TEST(CachingPool, ReusesABlockInFlightOnlyOnItsOwnLine) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto cache = make_caching_pool(lagging);
  const auto queue = lagging->lagging_queue();
  const auto other = lagging->lagging_queue();
  const Block block = take(*cache, {.bytes = 4096});
  ASSERT_TRUE(queue->fill({.block = block, .bytes = 4096, .device = lagging.get()}, 1).has_value());
  const Timepoint used = queue->submit().value();
  cache->release(block, used);

  const Block idle = take(*cache, {.bytes = 4096});
  EXPECT_NE(idle.handle, block.handle) << "the work is not done";
  const Block on_other = take(*cache, {.bytes = 4096, .on = other->timeline()});
  EXPECT_NE(on_other.handle, block.handle);
  const Block on_same = take(*cache, {.bytes = 4096, .on = queue->timeline()});
  EXPECT_EQ(on_same.handle, block.handle) << "a line is in order";
  cache->release(on_same, used);
  queue->reach(used);
  const Block later = take(*cache, {.bytes = 4096});
  EXPECT_EQ(later.handle, block.handle) << "the work is done";
  for (const Block& each : {idle, on_other, later}) cache->release(each);
  EXPECT_TRUE(cache->check().has_value());
}

// Debug builds guard the unused end of a block. Late work of a longer block may still write there.
TEST(CachingPool, LetsLateWorkOfALongerBlockWriteToTheEndOfAShorterOne) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto cache = make_caching_pool(lagging);
  const auto queue = lagging->lagging_queue();
  const Block longer = take(*cache, {.bytes = 61});
  ASSERT_TRUE(queue->fill({.block = longer, .bytes = 61, .device = lagging.get()}, 1).has_value());
  cache->release(longer, queue->submit().value());
  const Block shorter = take(*cache, {.bytes = 60, .on = queue->timeline()});
  ASSERT_EQ(shorter.handle, longer.handle);
  queue->reach_all();
  cache->release(shorter);
  EXPECT_TRUE(cache->check().has_value());
}

TEST(CachingPool, GivesABlockInFlightBackWithTheMomentOfItsLastUse) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto queue = lagging->lagging_queue();
  const auto cache = make_caching_pool(lagging);
  const Block block = take(*cache, {.bytes = 4096});
  ASSERT_TRUE(queue->fill({.block = block, .bytes = 4096, .device = lagging.get()}, 1).has_value());
  const Timepoint used = queue->submit().value();
  cache->release(block, used);
  EXPECT_EQ(cache->trim(), 4096u);
  EXPECT_EQ(lagging->counters().pending_bytes, 4096u) << "the device frees it when the work is done";
  queue->reach(used);
  ASSERT_TRUE(lagging->synchronize().has_value());
  EXPECT_EQ(lagging->counters().live_bytes, 0u);
}

TEST(CachingPool, DropsItsCacheAndTriesAgainWhenTheLayerBelowRefuses) {
  const auto capped = make_limit(cpu(), 100'000);
  const auto cache = make_caching_pool(capped);
  cache->release(take(*cache, {.bytes = 65'536}));
  EXPECT_EQ(capped->counters().live_bytes, 65'536u);
  const auto block = cache->allocate({.bytes = 81'920});
  ASSERT_TRUE(block.has_value()) << block.error().message();
  cache->release(*block);
}

TEST(CachingPool, ReportsTheFirstErrorWhenTheSecondTryFailsToo) {
  const auto capped = make_limit(cpu(), 100'000);
  const auto plan = std::make_shared<FaultTrigger>();
  const auto cache = make_caching_pool(make_fault(capped, plan));
  cache->release(take(*cache, {.bytes = 65'536}));
  plan->fail_at(1);
  const auto refused = cache->allocate({.bytes = 200'000, .label = "large"});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(plan->calls(), 2u) << "one retry";
  ASSERT_NE(refused.error().out_of_memory(), nullptr);
  EXPECT_EQ(refused.error().out_of_memory()->cause, OutOfMemory::Cause::kInjected);
  EXPECT_EQ(cache->counters().cached_bytes, 0u);
}

TEST(CachingPool, PassesOnErrorsThatMoreMemoryWouldNotCure) {
  const auto below = make_statistics(cpu());
  const auto cache = make_caching_pool(below);
  cache->release(take(*cache, {.bytes = 64}));
  const auto refused = cache->allocate({.bytes = 64, .alignment = 3});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->counters().cached_bytes, 64u) << "the cache was dropped for nothing";
}

TEST(CachingPool, RefusesToPassItsBudgetAndSaysWhatWouldHelp) {
  const auto cache = make_caching_pool(cpu(), {.budget = 4 * kMiB});
  const Block held = take(*cache, {.bytes = 3 * kMiB, .label = "held"});
  cache->release(take(*cache, {.bytes = 512 * 1024}));
  const auto fits = cache->allocate({.bytes = kMiB, .label = "needs the cache's room"});
  ASSERT_TRUE(fits.has_value()) << fits.error().message();
  const auto refused = cache->allocate({.bytes = kMiB, .label = "too much"});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  const OutOfMemory& report = *refused.error().out_of_memory();
  EXPECT_EQ(report.cause, OutOfMemory::Cause::kBudget);
  EXPECT_EQ(report.live_bytes, 4 * kMiB);
  EXPECT_EQ(report.cached_bytes, 0u);
  EXPECT_EQ(report.budget_needed, 5 * kMiB);
  EXPECT_EQ(report.holder_to_free, "needs the cache's room");
  cache->release(*fits);
  cache->release(held);
}

TEST(CachingPool, AsksForReliefBeforeItsBudgetRefuses) {
  Block held;
  CachingPool* self = nullptr;
  int asked = 0;
  const auto cache = make_caching_pool(cpu(), {.budget = 4 * kMiB, .on_pressure = [&](const BlockSpec& spec) {
                                                 EXPECT_EQ(spec.bytes, 3 * kMiB);
                                                 ++asked;
                                                 self->release(held);
                                                 return true;
                                               }});
  self = cache.get();
  held = take(*cache, {.bytes = 3 * kMiB});
  const auto block = cache->allocate({.bytes = 3 * kMiB});
  ASSERT_TRUE(block.has_value()) << block.error().message();
  EXPECT_EQ(asked, 1);
  cache->release(*block);
}

TEST(CachingPool, AsksADeviceForItsLargestBlockAndNotForMore) {
  class Capped final : public Device {
   public:
    Capped() : Device("CAPPED", {.max_block_bytes = 100'000}) {}
    Result<Block> allocate_block(const BlockSpec& spec) override {
      return Block{.handle = reinterpret_cast<std::uint64_t>(std::malloc(spec.bytes)), .bytes = spec.bytes};
    }
    void free_block(const Block& block, Timepoint) noexcept override {
      std::free(reinterpret_cast<void*>(block.handle));  // NOLINT
    }
    Result<std::unique_ptr<Queue>> create_queue() override {
      return Error(Code::kUnsupported, Layer::kDevice, "no queues");
    }
  };
  const auto cache = make_caching_pool(share_device(std::make_unique<Capped>()));
  const auto block = cache->allocate({.bytes = 99'999});
  ASSERT_TRUE(block.has_value()) << block.error().message();
  cache->release(*block);
  // No queue: reused memory that must be zeroed cannot be.
  const auto zeroed = cache->allocate({.bytes = 99'999, .zero = true});
  ASSERT_FALSE(zeroed.has_value());
  EXPECT_EQ(zeroed.error().code(), Code::kUnsupported);
  EXPECT_EQ(cache->counters().live_count, 0u) << "a failed call changes nothing";
}

TEST(CachingPool, SurvivesManyThreadsOptionsAndTrims) {
  const auto cache = make_caching_pool(cpu(), {.max_cached_bytes = 2 * kMiB});
  std::atomic<bool> stop{false};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        std::minstd_rand random(test::seed() + t);
        const Name tags[] = {Name(), Name("x"), Name("y")};
        std::vector<Block> held;
        for (int i = 0; i < 3000; ++i) {
          held.push_back(take(*cache, {.bytes = 1 + random() % 50'000, .tag = tags[random() % 3]}));
          if (held.size() > 20 || random() % 2 == 0) {
            std::swap(held[random() % held.size()], held.back());
            cache->release(held.back());
            held.pop_back();
          }
        }
        for (const Block& block : held) cache->release(block);
      });
    threads.emplace_back([&] {
      while (!stop) {
        cache->trim(100'000);
        cache->trim_tag("x");
        EXPECT_TRUE(cache->check().has_value());
        std::this_thread::yield();
      }
    });
    for (int t = 0; t < 3; ++t) threads[static_cast<std::size_t>(t)].join();
    stop = true;
  }
  const CachingPoolCounters after = cache->counters();
  EXPECT_EQ(after.live_bytes, 0u);
  EXPECT_EQ(after.live_count, 0u);
  EXPECT_EQ(after.hits + after.misses, 9000u);
  EXPECT_TRUE(cache->check().has_value());
}

#if !defined(NDEBUG) && !BERTH_ADDRESS_SANITIZER
TEST(PoolDeathTest, StopsWhenABlockWasWrittenPastItsEnd) {
  const auto cache = make_caching_pool(cpu());
  const Block block = take(*cache, {.bytes = 100, .label = "overrun"});
  EXPECT_DEATH(
      {
        block.host[100] = std::byte{0};
        cache->release(block);
      },
      "\"overrun\" was written past its end");
  cache->release(block);
}

TEST(CachingPool, OverwritesReleasedMemoryInDebugBuilds) {
  const auto cache = make_caching_pool(cpu());
  const Block block = take(*cache, {.bytes = 128});
  std::fill_n(block.host, 128, std::byte{1});
  cache->release(block);
  EXPECT_EQ(block.host[64], kReleased);
}
#endif

#if BERTH_ADDRESS_SANITIZER
TEST(CachingPool, PoisonsCachedMemoryForTheSanitizer) {
  const auto cache = make_caching_pool(cpu());
  const Block block = take(*cache, {.bytes = 100});
  EXPECT_FALSE(__asan_address_is_poisoned(block.host + 99));
  EXPECT_TRUE(__asan_address_is_poisoned(block.host + 120)) << "the rest of the class";
  cache->release(block);
  EXPECT_TRUE(__asan_address_is_poisoned(block.host));
  const Block again = take(*cache, {.bytes = 100});
  EXPECT_FALSE(__asan_address_is_poisoned(again.host));
  cache->release(again);
}
#endif

}  // namespace
}  // namespace berth
