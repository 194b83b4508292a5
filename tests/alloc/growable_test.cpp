#include "berth/alloc/growable.h"

#include <gtest/gtest.h>

#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"

namespace berth {
namespace {

using cuda_test::cuda_double;
using test::counting_bytes;
using test::fails_with;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kStep = std::size_t{2} << 20;

class SegmentTest : public ::testing::TestWithParam<const char*> {
 protected:
  DevicePtr open() {
    if (std::string_view(GetParam()) == "CUDA" && !choice_) choice_.emplace();
    return device(GetParam()).value();
  }
  std::shared_ptr<GrowableMemory> make(std::size_t steps) {
    return make_growable(open(), {.reserve_bytes = steps * kStep, .step_bytes = kStep}).value();
  }
  void TearDown() override {
    if (!choice_ || cuda_test::on_real_gpu()) return;
    cuda_test::expect_nothing_left();
  }

 private:
  std::optional<cuda_test::CudaChoice> choice_;
};

TEST_P(SegmentTest, GrowsWithoutMovingWhatIsThere) {
  const auto segment = make(16);
  EXPECT_EQ(segment->counters().mapped_bytes, 0u) << "addresses cost nothing";
  const Buffer first = Buffer::allocate(segment, u8, {1000}).value();
  ASSERT_TRUE(first.copyin(counting_bytes(1000, 1)));
  EXPECT_EQ(segment->counters().mapped_bytes, kStep);
  const std::uint64_t address = first.native_handle();
  const std::size_t large = 3 * kStep + 5;  // reaches over several steps
  const Buffer second = Buffer::allocate(segment, u8, {large}).value();
  ASSERT_TRUE(second.copyin(counting_bytes(large, 2)));
  EXPECT_EQ(first.native_handle(), address);
  EXPECT_GE(segment->counters().mapped_bytes, 3 * kStep);
  Bytes seen(1000);
  ASSERT_TRUE(first.copyout(seen));
  EXPECT_EQ(seen, counting_bytes(1000, 1));
  Bytes all(large);
  ASSERT_TRUE(second.copyout(all));
  EXPECT_TRUE(all == counting_bytes(large, 2));
}

TEST_P(SegmentTest, GivesMemoryOfEmptyStepsBack) {
  const auto segment = make(8);
  const Buffer kept = Buffer::allocate(segment, u8, {1000}).value();
  { const Buffer dropped = Buffer::allocate(segment, u8, {4 * kStep}).value(); }
  const std::size_t mapped = segment->counters().mapped_bytes;
  EXPECT_EQ(segment->trim(), mapped - kStep);
  EXPECT_EQ(segment->counters().mapped_bytes, kStep);
  EXPECT_EQ(segment->trim(), 0u);
  const Buffer again = Buffer::allocate(segment, u8, {kStep}, {.zero = true}).value();
  Bytes seen(kStep, std::byte{1});
  ASSERT_TRUE(again.copyout(seen));
  EXPECT_EQ(seen, Bytes(kStep));
}

TEST_P(SegmentTest, SaysWhyThereIsNoRoom) {
  const auto segment = make(2);
  const auto refused = Buffer::allocate(segment, u8, {3 * kStep});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  ASSERT_NE(refused.error().out_of_memory(), nullptr);
  EXPECT_EQ(refused.error().out_of_memory()->cause, OutOfMemory::Cause::kCapacity);
  EXPECT_TRUE(fails_with(segment->allocate({.bytes = 8, .alignment = 3}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(segment->allocate({.bytes = 8, .alignment = std::size_t{1} << 30}), Code::kUnsupported));
  EXPECT_EQ(segment->allocate({.bytes = 0}).value().bytes, 0u);
}

TEST_P(SegmentTest, ReusesMemoryOnlyAfterItsLastUse) {
  const auto segment = make(1);
  const DevicePtr device = open();
  const QueuePtr queue = device->make_queue().value();
  const QueuePtr other = device->make_queue().value();
  Bytes seen(kStep);
  std::uint64_t address = 0;
  {
    const Buffer buffer = Buffer::allocate(segment, u8, {kStep}).value();
    address = buffer.native_handle();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
    ASSERT_TRUE(queue->read(buffer.window().value(), seen));
    ASSERT_TRUE(queue->submit());
  }
  if (std::string_view(GetParam()) == "CUDA") {
    EXPECT_EQ(segment->counters().pending_bytes, kStep);
    EXPECT_TRUE(fails_with(Buffer::allocate(segment, u8, {kStep}, {.on = other->timeline()}), Code::kOutOfMemory));
  }
  // The same line may have it at once: it comes after by itself.
  const Buffer next = Buffer::allocate(segment, u8, {kStep}, {.on = queue->timeline()}).value();
  EXPECT_EQ(next.native_handle(), address);
  ASSERT_TRUE(queue->fill(next.window().value(), 2));
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(seen, Bytes(kStep, std::byte{1}));
}

TEST_P(SegmentTest, ReusesMemoryThatIsIdleBehindMemoryThatIsNot) {
  const auto segment = make(2);
  const DevicePtr device = open();
  const QueuePtr busy = device->make_queue().value();
  const QueuePtr idle = device->make_queue().value();
  for (const QueuePtr& queue : {busy, idle}) {
    const Buffer buffer = Buffer::allocate(segment, u8, {kStep}).value();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
    ASSERT_TRUE(queue->submit());
  }
  ASSERT_TRUE(idle->finish());
  const auto next = Buffer::allocate(segment, u8, {kStep});
  EXPECT_TRUE(next.has_value()) << "the second block is idle, though the one that was released before it is not";
}

TEST_P(SegmentTest, CountsItsStepsAsTheDevicesAndKeepsToTheBudget) {
  const DevicePtr device = open();
  const DeviceCounters before = device->counters();
  {
    const auto segment = make(8);
    const Buffer cache = Buffer::allocate(segment, u8, {1000}, {.label = "kv-cache"}).value();
    EXPECT_EQ(device->counters().live_bytes, before.live_bytes + kStep);
    EXPECT_EQ(device->counters().live_count, before.live_count + 1);
    EXPECT_GE(device->counters().peak_bytes, before.live_bytes + kStep);
    const Buffer same_step = Buffer::allocate(segment, u8, {1000}).value();
    EXPECT_EQ(device->counters().live_bytes, before.live_bytes + kStep) << "its memory was there";

    const std::size_t budget = before.live_bytes + 2 * kStep;
    device->set_budget(budget);
    const DeviceCounters held = device->counters();
    const auto refused = Buffer::allocate(segment, u8, {3 * kStep}, {.label = "scores"});
    ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
    const OutOfMemory* const report = refused.error().out_of_memory();
    ASSERT_NE(report, nullptr);
    EXPECT_EQ(report->cause, OutOfMemory::Cause::kBudget);
    EXPECT_EQ(report->budget, budget);
    EXPECT_EQ(report->asked, 3 * kStep);
    EXPECT_EQ(report->live_bytes, before.live_bytes + kStep);
    EXPECT_GE(report->budget_needed, before.live_bytes + 4 * kStep);
    EXPECT_TRUE(std::any_of(report->holders.begin(), report->holders.end(), [](const auto& holder) {
      return holder.label == "kv-cache" && holder.bytes == kStep;
    })) << refused.error().message();
    EXPECT_EQ(segment->counters().mapped_bytes, kStep) << "a failed call changes nothing";
    EXPECT_EQ(device->counters().live_bytes, held.live_bytes);
    EXPECT_EQ(device->counters().peak_bytes, held.peak_bytes);

    device->set_budget(report->budget_needed);
    EXPECT_TRUE(Buffer::allocate(segment, u8, {3 * kStep}).has_value()) << "what the report promised is enough";
    device->set_budget(0);
    EXPECT_GT(segment->trim(), 0u);
    EXPECT_EQ(device->counters().live_bytes, before.live_bytes + kStep);
  }
  EXPECT_EQ(device->counters().live_bytes, before.live_bytes);
  EXPECT_EQ(device->counters().live_count, before.live_count);
}

TEST_P(SegmentTest, TakesMemoryFromItsIdleStepsWhenTheBudgetIsSpent) {
  const DevicePtr device = open();
  const auto segment = make(8);
  {
    const Buffer idle = Buffer::allocate(segment, u8, {kStep / 2}).value();
    const Buffer first = Buffer::allocate(segment, u8, {kStep / 2}).value();
  }
  device->set_budget(device->counters().live_bytes + kStep);
  // Needs two steps beside the one that is there, and one is all the budget leaves.
  const Buffer kept = Buffer::allocate(segment, u8, {kStep / 4}).value();
  const Buffer across = Buffer::allocate(segment, u8, {kStep}).value();
  device->set_budget(0);
  EXPECT_EQ(segment->counters().mapped_bytes, 2 * kStep);
}

INSTANTIATE_TEST_SUITE_P(Devices, SegmentTest, ::testing::Values("CPU", "CUDA"),
                         [](const auto& each) { return std::string(each.param); });

TEST(SegmentOptionsTest, RefusesNothingAsASize) {
  EXPECT_TRUE(fails_with(make_growable(device("CPU").value(), {.reserve_bytes = 0}), Code::kInvalidArgument));
}

class SegmentOnDouble : public cuda_test::CudaDoubleTest {};

TEST(SegmentOptionsTest, RefusesToBeOnNoDevice) {
  EXPECT_TRUE(fails_with(make_growable(nullptr), Code::kInvalidArgument));
}

TEST(SegmentOptionsTest, RefusesSizesThatNoSumHolds) {
  const DevicePtr cpu = device("CPU").value();
  for (const std::size_t least : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 61}) {
    const std::size_t most = ~std::size_t{0} - least + 1;
    EXPECT_TRUE(fails_with(make_growable(cpu, {.reserve_bytes = most}), Code::kOutOfMemory)) << most;
    EXPECT_TRUE(fails_with(make_growable(cpu, {.reserve_bytes = kStep, .step_bytes = most}), Code::kOutOfMemory));
    EXPECT_TRUE(fails_with(make_growable(cpu, {.reserve_bytes = most, .step_bytes = most}), Code::kOutOfMemory));
    const auto segment = make_growable(cpu, {.reserve_bytes = kStep, .step_bytes = kStep}).value();
    EXPECT_TRUE(fails_with(segment->allocate({.bytes = most}), Code::kOutOfMemory)) << most;
    EXPECT_EQ(segment->counters().used_bytes, 0u);
  }
}

TEST_F(SegmentOnDouble, ChangesNothingWhenTheGpuIsFull) {
  const CudaDoubleOptions small{.memory_bytes = 3 * kStep};
  ASSERT_EQ(cuda_double().reset(&small), 1);
  const DevicePtr gpu = device("CUDA").value();
  const auto segment = make_growable(gpu, {.reserve_bytes = 64 * kStep, .step_bytes = kStep}).value();
  EXPECT_TRUE(fails_with(Buffer::allocate(segment, u8, {5 * kStep}), Code::kOutOfMemory));
  EXPECT_EQ(segment->counters().mapped_bytes, 0u);
  EXPECT_EQ(cuda_double().live_bytes(0), 0u);
  EXPECT_TRUE(Buffer::allocate(segment, u8, {2 * kStep}).has_value());
}

TEST_F(SegmentOnDouble, LeavesALargerBlockOfTheLineAloneWhileThereIsRoom) {
  const DevicePtr gpu = device("CUDA").value();
  const auto segment = make_growable(gpu, {.reserve_bytes = 4 * kStep, .step_bytes = kStep}).value();
  const QueuePtr queue = gpu->make_queue().value();
  std::uint64_t large = 0;
  {
    const Buffer buffer = Buffer::allocate(segment, u8, {2 * kStep}).value();
    large = buffer.native_handle();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
    ASSERT_TRUE(queue->submit());
  }
  EXPECT_EQ(segment->counters().pending_bytes, 2 * kStep);
  const Buffer small = Buffer::allocate(segment, u8, {kStep}, {.on = queue->timeline()}).value();
  EXPECT_NE(small.native_handle(), large) << "the other half of the block would be lost to everybody";
  const Buffer same = Buffer::allocate(segment, u8, {2 * kStep}, {.on = queue->timeline()}).value();
  EXPECT_EQ(same.native_handle(), large);
  ASSERT_TRUE(queue->finish());
}

TEST_F(SegmentOnDouble, ServesAPoolThatNamesAQueue) {
  const DevicePtr gpu = device("CUDA").value();
  const auto cached = make_caching_pool(gpu);
  const QueuePtr one = gpu->make_queue().value();
  const QueuePtr two = gpu->make_queue().value();
  { const Buffer never_used = Buffer::allocate(cached, u8, {4096}, {.on = one->timeline()}).value(); }
  // The cached block must be ordered for any queue, though the first to ask named one.
  const Buffer again = Buffer::allocate(cached, u8, {4096}, {.on = two->timeline()}).value();
  ASSERT_TRUE(two->fill(again.window().value(), 1));
  ASSERT_TRUE(two->finish());
}

}  // namespace
}  // namespace berth
