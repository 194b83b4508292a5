// What must allocate no heap memory, and what must survive that there is none. Counts calls of operator new on this
// thread, and refuses them when asked to.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/sanitizers.h"
#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"
#include "doubles/cuda/cuda_testing.h"
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
  int launched = 0;
  const Kernel kernel = lagging->make_kernel({.host = [&](const HostCall&) { ++launched; }}).value();
  const Buffer other = Buffer::allocate(lagging, u8, {64}).value();
  const Window beside = other.window().value();
  using Operation = std::function<Result<void>(Queue&, const Window&)>;
  const Operation operations[] = {
      [](Queue& queue, const Window& window) { return queue.fill(window, 2); },
      [&](Queue& queue, const Window& window) {
        const KernelArgument argument{window, Access::kReadWrite};
        return queue.launch(kernel, {&argument, 1}, {});
      },
      [&](Queue& queue, const Window& window) { return queue.copy(window, beside); },
      [&](Queue& queue, const Window& window) { return queue.copy(beside, window); },
  };
  for (const Operation& operation : operations) {
    const auto first = lagging->lagging_queue();
    const auto second = lagging->lagging_queue();
    const Buffer buffer = Buffer::allocate(lagging, u8, {64}).value();
    const Window window = buffer.window().value();
    ASSERT_TRUE(first->fill(window, 1));
    int refused = 0;
    for (std::size_t left = 0;; ++left) {
      const Timepoint before = second->submit().value();
      bool recorded = false;
      news_left = left;
      try {
        recorded = operation(*second, window).has_value();
      } catch (const std::bad_alloc&) {  // of the double
      }
      news_left = SIZE_MAX;
      if (recorded) break;
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
  EXPECT_EQ(launched, 1) << "only the launch that was not refused";
}

// Whichever allocation fails, the owner gets its memory back once, and the device forgets it.
TEST(HeapFailure, ReturnsImportedMemoryToItsOwnerOnce) {
  const DevicePtr cpu = device("CPU").value();
  { const Buffer first = Buffer::allocate(cpu, u8, {64}).value(); }  // what is made once in a process is there
  const std::size_t before = cpu->counters().foreign_count;
  alignas(64) std::byte memory[64];
  int refused = 0;
  std::thread([&] {  // without storages that an earlier test of this thread left for reuse
    for (std::size_t left = 0;; ++left) {
      int releases = 0;
      ForeignMemory foreign{.address = reinterpret_cast<std::uintptr_t>(memory), .bytes = sizeof memory};
      foreign.release = [&releases] { ++releases; };
      std::optional<Buffer> buffer;
      news_left = left;
      try {
        buffer = Buffer::import(cpu, std::move(foreign), u8, {64}).value();
      } catch (const std::bad_alloc&) {
      }
      news_left = SIZE_MAX;
      EXPECT_EQ(releases, buffer ? 0 : 1) << "with " << left << " allocations";
      const bool imported = buffer.has_value();
      buffer.reset();
      EXPECT_EQ(releases, 1) << "with " << left << " allocations";
      EXPECT_EQ(cpu->counters().foreign_count, before);
      if (imported) break;
      ++refused;
    }
  })
      .join();
  EXPECT_GT(refused, 1) << "the allocator of the import and the storage both need memory";
}

// The first allocations of a capture, before the driver is called: the pool and the queue can be used afterwards.
TEST(HeapFailure, LeavesNoCaptureBehindThatNeverBegan) {
  const cuda_test::CudaChoice choice;
  {
    const DevicePtr gpu = device("CUDA:0").value();
    const QueuePtr queue = gpu->make_queue().value();
    const auto pool = make_cuda_graph_pool(gpu).value();
    for (std::size_t left = 0; left < 3; ++left) {
      std::optional<CudaCapture> capture;
      news_left = left;
      EXPECT_THROW(capture.emplace(CudaCapture::begin(queue, {.pool = pool}).value()), std::bad_alloc);
      news_left = SIZE_MAX;
      auto begun = CudaCapture::begin(queue, {.pool = pool});
      ASSERT_TRUE(begun) << "with " << left << " allocations: " << begun.error().message();
      EXPECT_TRUE(begun->end());
    }
  }
  if (!cuda_test::on_real_gpu()) cuda_test::expect_nothing_left();
}

}  // namespace
}  // namespace berth
#endif
