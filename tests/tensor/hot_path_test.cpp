// What must allocate no heap memory. Counts calls of operator new on this thread.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/sanitizers.h"
#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"

// The sanitizers bring their own.
#if !BERTH_ADDRESS_SANITIZER && !BERTH_THREAD_SANITIZER
namespace {
thread_local std::size_t news = 0;
thread_local std::size_t new_bytes = 0;
}  // namespace

void* operator new(std::size_t bytes) {
  ++news;
  new_bytes += bytes;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
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

}  // namespace
}  // namespace berth
#endif
