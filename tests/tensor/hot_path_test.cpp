// What must allocate no heap memory, and what must survive that there is none. Counts calls of operator new on this
// thread, and refuses them when asked to.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/sanitizers.h"
#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"
#include "doubles/lagging_device.h"

// The sanitizers bring their own.
#if !BERTH_ADDRESS_SANITIZER && !BERTH_THREAD_SANITIZER
namespace {
thread_local std::size_t news = 0;
thread_local std::size_t new_bytes = 0;
thread_local std::size_t news_left = SIZE_MAX;  // the calls that still succeed
}  // namespace

// None is inlined: g++ would take the call of free() for a mistake where it sees who made the memory.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++news;
  new_bytes += bytes;
  if (news_left == 0) throw std::bad_alloc();
  if (news_left != SIZE_MAX) --news_left;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace berth {

using namespace internal;

namespace {

TEST(HotPath, TheCounterCounts) {
  const std::size_t before = news;
  int* volatile made = new int(3);  // volatile, or the optimiser may leave both calls out
  delete made;
  EXPECT_GT(news, before);
}

TEST(HotPath, APoolHitAllocatesNoHeapMemory) {
  const auto cache = make_caching_pool(device("CPU").value());
  const BlockSpec spec{.bytes = 4096, .label = "hot"};
  cache->release(cache->allocate(spec).value());
  const std::size_t before = news;
  for (int i = 0; i < 1000; ++i) {
    auto block = cache->allocate(spec);
    cache->release(*block);
  }
  EXPECT_EQ(news, before);
}

TEST(HotPath, AResidencyCommitCostsWhatChangedAndNotWhatIsThere) {
  CountingResidency set;
  for (std::uint64_t i = 1; i <= 100'000; ++i) set.add({.handle = i, .bytes = 1});
  set.set_budget(std::size_t{1} << 30, [](std::span<const Block>) {});
  set.commit().value();
  const std::size_t before = new_bytes;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    set.add({.handle = i << 32, .bytes = 1});
    set.commit().value();
  }
  EXPECT_LT(new_bytes - before, 10'000u);
}

TEST(HotPath, AViewAndARefusedViewAllocateNoHeapMemory) {
  const Buffer buffer = Buffer::allocate(device("CPU").value(), f32, {1024}).value();
  const std::size_t before = news;
  for (std::size_t i = 0; i < 1000; ++i) {
    auto view = buffer.view(i, 64);
    auto refused = buffer.view(i, 5000);
    if (!view || refused) std::abort();
  }
  EXPECT_EQ(news, before);
}

TEST(HotPath, ABufferOnAPoolHitAllocatesNoHeapMemory) {
  const auto cache = make_caching_pool(device("CPU").value());
  { const auto first = Buffer::allocate(cache, f32, {1024}).value(); }
  const std::size_t before = news;
  for (int i = 0; i < 1000; ++i) {
    auto buffer = Buffer::allocate(cache, f32, {1024});
    if (!buffer) std::abort();
  }
  EXPECT_EQ(news, before);
}

// Two queues use one buffer, so the second must keep a reference: it says that it cannot before it records anything.
TEST(HeapFailure, LeavesNothingRecordedAndNoReferenceBehind) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto first = lagging->lagging_queue();
  const auto second = lagging->lagging_queue();
  const Buffer buffer = Buffer::allocate(lagging, u8, {64}).value();
  const Window window = buffer.window().value();
  ASSERT_TRUE(first->fill(window, 1));
  int refused = 0;
  for (std::size_t left = 0;; ++left) {
    const Timepoint before = second->submit().value();
    bool filled = false;
    news_left = left;
    try {
      filled = second->fill(window, 2).has_value();
    } catch (const std::bad_alloc&) {  // of the double
    }
    news_left = SIZE_MAX;
    if (filled) break;
    ++refused;
    ASSERT_TRUE(buffer.is_unique()) << "a reference is kept for work that was refused";
    ASSERT_EQ(second->submit().value(), before) << "refused, and recorded all the same";
  }
  EXPECT_GT(refused, 0);
  EXPECT_FALSE(buffer.is_unique());
  ASSERT_TRUE(first->finish());
  ASSERT_TRUE(second->finish());
  EXPECT_TRUE(buffer.is_unique());
}

}  // namespace
}  // namespace berth
#endif
