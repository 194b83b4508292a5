// Limit, Statistics, DryRun and Fault: what each adds to what the conformance suite checks of all.
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "base/sanitizers.h"
#include "berth/alloc/adaptor.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/dry_run.h"
#include "berth/alloc/fault.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/statistics.h"
#include "berth/berth.h"

namespace berth {

using namespace internal;

namespace {

AllocatorPtr cpu() {
  return device("CPU").value();
}

TEST(Limit, RefusesWhatWouldPassItAndNothingElse) {
  const auto capped = make_limit(cpu(), 1000);
  const Block a = capped->allocate({.bytes = 600}).value();
  EXPECT_EQ(capped->allocate({.bytes = 401}).error().code(), Code::kOutOfMemory);
  const Block b = capped->allocate({.bytes = 400}).value();
  EXPECT_EQ(capped->counters().live_bytes, 1000u);
  capped->release(a);
  capped->release(b);
  EXPECT_EQ(capped->counters().live_bytes, 0u);
  EXPECT_EQ(capped->counters().peak_bytes, 1000u);
  EXPECT_EQ(capped->limit_bytes(), 1000u);
  EXPECT_FALSE(capped->allocate({.bytes = ~std::size_t{0} - 5}).has_value()) << "the sum must not wrap around";
}

TEST(Limit, ChargesWhatWasAskedEvenOverAPoolThatRounds) {
  const auto capped = make_limit(make_caching_pool(cpu()), 10'000);
  const Block block = capped->allocate({.bytes = 9'300}).value();
  EXPECT_EQ(capped->counters().live_bytes, 9'300u);
  capped->release(block);
}

TEST(Limit, ForgetsWhatItRefusedBecauseTheLayerBelowGaveMore) {
  class Doubling final : public AllocatorAdaptor {
   public:
    explicit Doubling(AllocatorPtr inner) : AllocatorAdaptor(std::move(inner)) {}
    Result<Block> allocate(const BlockSpec& spec) override {
      BlockSpec twice = spec;
      twice.bytes *= 2;
      return inner()->allocate(twice);
    }
    void release(const Block& block, Timepoint last_use) noexcept override { inner()->release(block, last_use); }
    std::string_view name() const noexcept override { return "doubling"; }
  };
  const auto capped = make_limit(std::make_shared<Doubling>(cpu()), 1000);
  EXPECT_EQ(capped->allocate({.bytes = 600}).error().code(), Code::kOutOfMemory);
  EXPECT_EQ(capped->counters().live_bytes, 0u);
  const auto fits = capped->allocate({.bytes = 500});
  ASSERT_TRUE(fits.has_value()) << fits.error().message();
  EXPECT_EQ(capped->counters().live_bytes, 1000u);
  capped->release(*fits);
}

TEST(Limit, AsksForReliefOnceBeforeItRefuses) {
  Block held;
  Limit* self = nullptr;
  int asked = 0;
  const auto capped = make_limit(cpu(), 1000, [&](const BlockSpec&) {
    ++asked;
    if (asked > 1) return false;
    self->release(held);
    return true;
  });
  self = capped.get();
  held = capped->allocate({.bytes = 800}).value();
  const auto block = capped->allocate({.bytes = 900});
  ASSERT_TRUE(block.has_value());
  EXPECT_FALSE(capped->allocate({.bytes = 900}).has_value());
  EXPECT_EQ(asked, 2);
  capped->release(*block);
}

TEST(Limit, NeverLetsTwoThreadsTakeTheLastBytes) {
  const auto capped = make_limit(make_dry_run(cpu()), 100);
  std::atomic<int> granted{0};
  std::latch start(8);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        start.arrive_and_wait();
        for (int i = 0; i < 20; ++i)
          if (capped->allocate({.bytes = 10})) granted.fetch_add(1);
      });
  }
  EXPECT_EQ(granted.load(), 10);
}

TEST(Statistics, CountsExactly) {
  const auto counted = make_statistics(make_limit(cpu(), 10'000));
  const Block a = counted->allocate({.bytes = 1000, .label = "a"}).value();
  const Block b = counted->allocate({.bytes = 3000, .label = "b"}).value();
  EXPECT_FALSE(counted->allocate({.bytes = 20'000}).has_value());
  counted->release(a);
  const StatisticsCounters now = counted->counters();
  EXPECT_EQ(now.live_bytes, 3000u);
  EXPECT_EQ(now.live_count, 1u);
  EXPECT_EQ(now.peak_bytes, 4000u);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.releases, 1u);
  EXPECT_EQ(now.failures, 1u);
  EXPECT_EQ(now.total_bytes, 4000u);
  EXPECT_EQ(now.sizes[9], 1u);
  EXPECT_EQ(now.sizes[11], 1u);
  ASSERT_EQ(now.holders.size(), 1u);
  EXPECT_EQ(now.holders[0].label, "b");
  counted->release(b);
  counted->release(counted->allocate({.bytes = 1}).value());
  counted->release(counted->allocate({.bytes = 2}).value());
  EXPECT_EQ(counted->counters().sizes[0], 1u);
  EXPECT_EQ(counted->counters().sizes[1], 1u);
}

TEST(DryRun, CountsSizesAndTakesNoMemory) {
  const auto dry = make_dry_run(cpu());
  const auto before = dry->device().counters().live_bytes;
  const Buffer a = Buffer::allocate(dry, f32, {1u << 30}).value();
  {
    const Buffer b = Buffer::allocate(dry, f32, {1u << 30}).value();
    EXPECT_EQ(dry->counters().live_count, 2u);
  }
  EXPECT_EQ(dry->counters().live_bytes, std::size_t{4} << 30);
  EXPECT_EQ(dry->counters().peak_bytes, std::size_t{8} << 30);
  EXPECT_EQ(dry->device().counters().live_bytes, before);
}

TEST(DryRun, RefusesEveryUseOfItsBytesWithoutACrash) {
  const Buffer buffer = Buffer::allocate(make_dry_run(cpu()), u8, {64}).value();
  std::vector<std::byte> bytes(64);
  EXPECT_EQ(buffer.as_host_bytes_mut().error().code(), Code::kNotCpuAccessible);
  EXPECT_EQ(buffer.copyin(bytes).error().code(), Code::kInvalidUsage);
  EXPECT_EQ(buffer.copyout(bytes).error().code(), Code::kInvalidUsage);
}

TEST(Fault, FailsTheNthCallAndNoOther) {
  const auto faulty = make_fault(cpu());
  faulty->plan().fail_at(2);
  const Block a = faulty->allocate({.bytes = 10}).value();
  const auto refused = faulty->allocate({.bytes = 10, .label = "second"});
  ASSERT_FALSE(refused.has_value());
  ASSERT_NE(refused.error().out_of_memory(), nullptr);
  EXPECT_EQ(refused.error().out_of_memory()->cause, OutOfMemory::Cause::kInjected);
  EXPECT_NE(refused.error().message().find("injected by a test"), std::string::npos);
  const Block b = faulty->allocate({.bytes = 10}).value();
  EXPECT_EQ(faulty->plan().calls(), 3u);
  EXPECT_EQ(faulty->plan().faults(), 1u);
  faulty->release(a);
  faulty->release(b);
}

TEST(Fault, FailsEveryNthCall) {
  FaultTrigger plan;
  plan.fail_every(3);
  int failed = 0;
  for (int i = 0; i < 9; ++i) failed += plan.next_fails();
  EXPECT_EQ(failed, 3);
  plan.fail_none();
  EXPECT_FALSE(plan.next_fails());
}

#if !defined(NDEBUG) && !BERTH_ADDRESS_SANITIZER
TEST(CpuDeathTest, StopsWhenABlockWasWrittenPastItsEnd) {
  for (const std::size_t bytes : {100u, 4u << 20}) {
    const AllocatorPtr allocator = cpu();
    const Block block = allocator->allocate({.bytes = bytes, .label = "guarded"}).value();
    EXPECT_DEATH(
        {
          block.host[bytes + 3] = std::byte{0};
          allocator->release(block);
        },
        "\"guarded\" was written past its end, 3 bytes behind it");
    allocator->release(block);
  }
}
#endif

}  // namespace
}  // namespace berth
