#include "berth/tensor/step_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "base/try.h"
#include "berth/testing.h"
#include "devices/cpu/cpu_device.h"
#include "doubles/lagging_device.h"
#include "support/support.h"

namespace berth {

using namespace internal;

namespace {

using test::fails_with;

DevicePtr own_cpu() {
  return cpu::open().value();
}

TEST(StepBuffers, HandsOutTheBufferThatWasReturnedLast) {
  StepBuffers pool(own_cpu());
  const Buffer a = pool.allocate(u8, {100}).value();
  const Buffer b = pool.allocate(u8, {120}).value();
  ASSERT_TRUE(pool.release(a));
  ASSERT_TRUE(pool.release(b));
  EXPECT_EQ(pool.allocate(u8, {65}).value().storage_id(), b.storage_id());
  EXPECT_EQ(pool.allocate(u8, {128}).value().storage_id(), a.storage_id());
}

TEST(StepBuffers, KeepsPowersOfTwoApart) {
  StepBuffers pool(own_cpu());
  const Buffer small = pool.allocate(u8, {64}).value();
  ASSERT_TRUE(pool.release(small));
  const Buffer larger = pool.allocate(u8, {65}).value();
  EXPECT_NE(larger.storage_id(), small.storage_id());
  EXPECT_EQ(larger.total_size(), 128u);
  EXPECT_EQ(larger.size(), 65u);
}

TEST(StepBuffers, ZeroesFreshMemoryAndReusedMemoryOnlyWhenAsked) {
  StepBuffers pool(own_cpu());
  const auto all = [](const Buffer& buffer, std::uint8_t value) {
    return std::ranges::all_of(buffer.as_slice<std::uint8_t>().value(), [&](std::uint8_t x) { return x == value; });
  };
  {
    const Buffer fresh = pool.allocate(u8, {200}).value();
    EXPECT_TRUE(all(fresh, 0));
    std::ranges::fill(fresh.as_slice_mut<std::uint8_t>().value(), std::uint8_t{7});
    ASSERT_TRUE(pool.release(fresh));
  }
  const Buffer reused = pool.allocate(u8, {200}).value();
  EXPECT_TRUE(all(reused, 7));
  ASSERT_TRUE(pool.release(reused));
  EXPECT_TRUE(all(pool.allocate(u8, {200}, {.zero = true}).value(), 0));
}

TEST(StepBuffers, GivesNoBufferThatItCouldNotZero) {
  using Bytes = std::vector<std::byte>;
  const SweepReport report = fail_each([](const DevicePtr& device) -> Result<void> {
    StepBuffers pool(device);
    {
      BERTH_TRY_ASSIGN(const Buffer dirty, pool.allocate(u8, {200}));
      BERTH_TRY(dirty.copyin(Bytes(200, std::byte{7})));
      BERTH_TRY(pool.release(dirty));
    }
    BERTH_TRY_ASSIGN(const Buffer clean, pool.allocate(u8, {200}, {.zero = true}));
    Bytes seen(200, std::byte{1});
    BERTH_TRY(clean.copyout(seen));
    EXPECT_EQ(seen, Bytes(200)) << "it was not zeroed, and nobody was told";
    return {};
  });
  EXPECT_TRUE(report.ok()) << report.to_string();
  EXPECT_GT(report.rounds, 3u);
}

TEST(StepBuffers, RefusesABufferReturnedTwice) {
  StepBuffers pool(own_cpu());
  const Buffer buffer = pool.allocate(u8, {100}).value();
  ASSERT_TRUE(pool.release(buffer));
  EXPECT_TRUE(fails_with(pool.release(buffer), Code::kNotOwned));
  EXPECT_EQ(pool.counters().free, 1u);
}

TEST(StepBuffers, RefusesABufferReturnedAgainAfterItsMemoryWasGivenToAnother) {
  StepBuffers pool(own_cpu());
  const Buffer old = pool.allocate(u8, {100}).value();
  ASSERT_TRUE(pool.release(old));
  const Buffer live = pool.allocate(u8, {100}).value();
  ASSERT_EQ(live.storage_id(), old.storage_id());
  EXPECT_TRUE(fails_with(pool.release(old), Code::kNotOwned));
  EXPECT_NE(pool.allocate(u8, {100}).value().storage_id(), live.storage_id()) << "memory in use was handed out";
  EXPECT_TRUE(pool.release(live));
}

TEST(StepBuffers, RefusesAHandleFromBeforeAResetOrAReclaim) {
  StepBuffers pool(own_cpu(), 1);
  const Buffer before = pool.allocate(u8, {100}).value();
  pool.reset();
  const Buffer after = pool.allocate(u8, {100}).value();
  EXPECT_TRUE(fails_with(pool.release(before), Code::kNotOwned));
  EXPECT_EQ(pool.counters().used, 1u);
  ASSERT_TRUE(pool.release(after));
  pool.clear();
  EXPECT_TRUE(fails_with(pool.release(after), Code::kNotOwned));
}

TEST(StepBuffers, TakesACopyOfTheHandleButNoView) {
  StepBuffers pool(own_cpu());
  const Buffer buffer = pool.allocate(u8, {100}).value();
  EXPECT_TRUE(fails_with(pool.release(buffer.view(0, 100).value()), Code::kNotOwned));
  EXPECT_TRUE(fails_with(pool.release(buffer.with_shape({10, 10}).value()), Code::kNotOwned));
  EXPECT_EQ(pool.counters().used, 1u);
  const Buffer copy = buffer;
  EXPECT_TRUE(pool.release(copy));
  EXPECT_TRUE(fails_with(pool.release(buffer), Code::kNotOwned));
}

// Any sequence of calls with handles of any age: what is in use is in use once, and only its own handle releases it.
TEST(StepBuffers, NeverGivesOneStorageToTwoUsers) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    StepBuffers pool(own_cpu());
    std::vector<Buffer> all;         // every handle ever returned
    std::set<std::uint64_t> in_use;  // by id
    for (int call = 0; call < 400; ++call) {
      const unsigned what = random() % 16;
      if (what < 7 || all.empty()) {
        const Buffer fresh = pool.allocate(u8, {1 + random() % 300}).value();
        for (const Buffer& other : all)
          if (in_use.contains(other.id())) {
            ASSERT_NE(other.storage_id(), fresh.storage_id()) << "seed " << seed;
          }
        all.push_back(fresh);
        in_use.insert(fresh.id());
      } else if (what < 15) {
        const Buffer& one = all[random() % all.size()];
        const bool view = random() % 4 == 0;
        const bool released = pool.release(view ? one.view(0, 1).value() : one).has_value();
        ASSERT_EQ(released, !view && in_use.erase(one.id()) == 1) << "seed " << seed;
      } else {
        pool.reset();
        in_use.clear();
      }
      ASSERT_EQ(pool.counters().used, in_use.size()) << "seed " << seed;
    }
  }
}

TEST(StepBuffers, RefusesABufferThatIsNotItsOwn) {
  const DevicePtr cpu = own_cpu();
  StepBuffers pool(cpu);
  EXPECT_TRUE(fails_with(pool.release(Buffer::allocate(cpu, u8, {100}).value()), Code::kNotOwned));
  EXPECT_TRUE(fails_with(pool.release(Buffer()), Code::kNotOwned));
}

TEST(StepBuffers, AllocatesNothingAfterTheFirstStep) {
  const DevicePtr cpu = own_cpu();
  StepBuffers pool(cpu);
  for (int step = 0; step < 10; ++step) {
    for (std::size_t i = 0; i < 1750; ++i) ASSERT_TRUE(pool.allocate(f32, {1 + i % 7, 64}));
    pool.reset();
  }
  EXPECT_EQ(cpu->counters().allocations, 1750u);
  EXPECT_EQ(pool.counters().fresh, 1750u);
  EXPECT_EQ(pool.counters().reused, 9u * 1750u);
  EXPECT_EQ(pool.counters().used, 0u);
}

TEST(StepBuffers, GivesABatchAsAWholeOrNotAtAll) {
  const DevicePtr cpu = own_cpu();
  StepBuffers pool(cpu);
  const std::vector<BufferRequest> batch(3, {u8, {1000}, {}});
  EXPECT_EQ(pool.allocate_batch(batch).value().size(), 3u);
  EXPECT_TRUE(pool.allocate_batch({}).value().empty());
  pool.clear();
  cpu->set_budget(2048);
  EXPECT_TRUE(fails_with(pool.allocate_batch(batch), Code::kOutOfMemory));
  EXPECT_EQ(pool.counters().used, 0u);
  EXPECT_EQ(pool.counters().free, 2u);
}

TEST(StepBuffers, CostsOneResidencyCommitABatchAndNoneWhenEmpty) {
  const DevicePtr cpu = own_cpu();
  ASSERT_TRUE(cpu->keep_resident());
  const QueuePtr queue = cpu->make_queue().value();
  StepBuffers pool(cpu);
  const std::vector<BufferRequest> batch(50, {u8, {1000}, {}});
  ASSERT_TRUE(pool.allocate_batch({}));
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->counters().commits, 0u);
  ASSERT_TRUE(pool.allocate_batch(batch));
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->counters().commits, 1u);
  pool.reset();
  ASSERT_TRUE(pool.allocate_batch(batch));
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->counters().commits, 1u);
}

TEST(StepBuffers, RegistersAnExistingBufferOnceAndNeverRecyclesIt) {
  const DevicePtr cpu = own_cpu();
  ASSERT_TRUE(cpu->keep_resident());
  std::vector<std::byte> foreign(4096);
  const Buffer buffer =
      Buffer::import(cpu, {.address = reinterpret_cast<std::uint64_t>(foreign.data()), .bytes = 4096}, u8, {4096})
          .value();
  StepBuffers pool(cpu);
  ASSERT_TRUE(pool.register_existing(buffer));
  ASSERT_TRUE(pool.register_existing(buffer.view(0, 10).value()));
  EXPECT_EQ(cpu->residency()->counters().added, 1u);
  EXPECT_EQ(pool.counters().registered, 1u);
  EXPECT_TRUE(fails_with(pool.release(buffer), Code::kNotOwned));
  pool.reset();
  EXPECT_NE(pool.allocate(u8, {4096}).value().storage_id(), buffer.storage_id());
  const auto before = cpu->residency()->counters().removed;
  pool.clear();
  EXPECT_GT(cpu->residency()->counters().removed, before);
  EXPECT_EQ(pool.counters().registered, 0u);
}

TEST(StepBuffers, RefusesToRegisterABufferOfAnotherDevice) {
  StepBuffers pool(own_cpu());
  EXPECT_TRUE(fails_with(pool.register_existing(Buffer::allocate(own_cpu(), u8, {1}).value()), Code::kInvalidArgument));
  const Buffer lazy = Buffer::lazy(own_cpu(), u8, {1}).value();
  EXPECT_TRUE(fails_with(pool.register_existing(lazy), Code::kInvalidArgument));
  EXPECT_FALSE(lazy.is_allocated()) << "a refused buffer takes no memory";
  EXPECT_TRUE(fails_with(pool.register_existing(Buffer()), Code::kInvalidArgument));
}

TEST(StepBuffers, ReportsAForgottenResetInsteadOfGrowing) {
  StepBuffers pool(own_cpu(), 10);
  std::vector<Buffer> held;
  for (int i = 0; i < 10; ++i) held.push_back(pool.allocate(u8, {100}).value());
  const auto refused = pool.allocate(u8, {100});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  EXPECT_NE(refused.error().message().find("reset()"), std::string::npos);
  EXPECT_EQ(pool.counters().used, 10u);
}

TEST(StepBuffers, TakesBackWhatWasDroppedWithoutBeingReturned) {
  const DevicePtr cpu = own_cpu();
  StepBuffers pool(cpu, 10);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pool.allocate(u8, {100}));
  EXPECT_LE(cpu->counters().allocations, 10u);
}

TEST(StepBuffers, TakesBackNothingThatAQueueStillUses) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto queue = lagging->lagging_queue();
  StepBuffers pool(lagging, 4);
  for (int i = 0; i < 4; ++i) {
    const Buffer buffer = pool.allocate(u8, {100}).value();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
  }
  EXPECT_TRUE(fails_with(pool.allocate(u8, {100}), Code::kOutOfMemory)) << "dropped, and not done with";
  ASSERT_TRUE(queue->submit());
  EXPECT_TRUE(fails_with(pool.allocate(u8, {100}), Code::kOutOfMemory));
  queue->reach_all();
  EXPECT_TRUE(pool.allocate(u8, {100}));
  EXPECT_EQ(pool.counters().reclaimed, 4u);
}

TEST(StepBuffers, LooksForDroppedBuffersBeforeItGrowsFar) {
  const DevicePtr cpu = own_cpu();
  StepBuffers pool(cpu);
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(pool.allocate(u8, {64}));
  EXPECT_LE(cpu->counters().allocations, 4096u);
  EXPECT_GT(pool.counters().reclaimed, 90'000u);
}

TEST(StepBuffers, LooksForDroppedBuffersWhenThereIsNoMemory) {
  const DevicePtr cpu = own_cpu();
  cpu->set_budget(2048);
  StepBuffers pool(cpu);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pool.allocate(u8, {1000}));
  const Buffer one = pool.allocate(u8, {1000}).value();
  const Buffer two = pool.allocate(u8, {1000}).value();
  EXPECT_TRUE(fails_with(pool.allocate(u8, {1000}), Code::kOutOfMemory));
}

TEST(StepBuffers, HandsOutNothingOfAnotherKind) {
  StepBuffers pool(own_cpu());
  const Buffer plain = pool.allocate(u8, {100}).value();
  ASSERT_TRUE(pool.release(plain));
  const Buffer aligned = pool.allocate(u8, {100}, {.alignment = 4096}).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned.as_raw_ptr()) % 4096, 0u);
  EXPECT_NE(aligned.storage_id(), plain.storage_id());
  EXPECT_NE(pool.allocate(u8, {100}, {.usage = Usage::kAll}).value().storage_id(), plain.storage_id());
  EXPECT_NE(pool.allocate(u8, {100}, {.tag = "step"}).value().storage_id(), plain.storage_id());
  EXPECT_EQ(pool.allocate(u8, {100}).value().storage_id(), plain.storage_id());
}

TEST(StepBuffers, LeavesAMemberOfTheDeviceInPlaceWhenItIsCleared) {
  const DevicePtr cpu = own_cpu();
  ASSERT_TRUE(cpu->keep_resident());
  const Buffer buffer = Buffer::allocate(cpu, u8, {100}).value();
  {
    StepBuffers one(cpu), two(cpu);
    ASSERT_TRUE(one.register_existing(buffer));
    ASSERT_TRUE(two.register_existing(buffer));
  }
  EXPECT_EQ(cpu->residency()->counters().members, 1u);
}

TEST(StepBuffers, LetsItsBuffersOutliveIt) {
  Buffer buffer;
  {
    StepBuffers pool(own_cpu());
    buffer = pool.allocate(i32, {4}).value();
  }
  buffer.as_slice_mut<std::int32_t>().value()[3] = 5;
  EXPECT_TRUE(buffer.is_unique());
}

TEST(StepBuffers, RefusesShapesThatAreNoSize) {
  StepBuffers pool(own_cpu());
  EXPECT_TRUE(fails_with(pool.allocate(DType::kQ4_0, {5}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(pool.allocate(u8, {~std::size_t{0}, 2}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(pool.allocate(u8, {2}, {.alignment = 3}), Code::kInvalidArgument));
  EXPECT_EQ(pool.allocate(f32, {0}).value().size(), 0u);
}

TEST(StepBuffers, ServesSeveralThreadsAtOnce) {
  StepBuffers pool(own_cpu());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&pool, t] {
        for (int i = 0; i < 500; ++i) {
          const Buffer buffer = pool.allocate(u8, {256}).value();
          const auto bytes = buffer.as_slice_mut<std::uint8_t>().value();
          std::ranges::fill(bytes, static_cast<std::uint8_t>(t));
          EXPECT_EQ(bytes[255], t);
          EXPECT_TRUE(pool.release(buffer));
        }
      });
  }
  EXPECT_EQ(pool.counters().used, 0u);
  EXPECT_LE(pool.counters().fresh, 4u);
}

}  // namespace
}  // namespace berth
