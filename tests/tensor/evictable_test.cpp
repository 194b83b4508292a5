#include "berth/tensor/evictable.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "berth/berth.h"
#include "devices/cuda/cuda_abi.h"
#include "doubles/cuda/cuda_testing.h"
#include "doubles/lagging_device.h"
#include "support/support.h"

namespace berth {

using namespace internal;

namespace {

using cuda_test::cuda_double;
using test::counting_bytes;
using test::fails_with;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBytes = (std::size_t{3} << 20) + 17;  // not whole pages

// The same tests on host memory, for real, and on the CUDA driver double.
class Evict : public ::testing::TestWithParam<const char*> {
 protected:
  DevicePtr open() {
    if (std::string_view(GetParam()) == "CUDA" && !choice_) choice_.emplace();
    return device(GetParam()).value();
  }
  void TearDown() override {
    if (!choice_ || cuda_test::on_real_gpu()) return;
    cuda_test::expect_nothing_left();
  }
  static Contents kept() { return std::string_view(GetParam()) == "CPU" ? Contents::kToFile : Contents::kToHost; }

 private:
  std::optional<cuda_test::CudaChoice> choice_;
};

Buffer filled(const std::shared_ptr<EvictableMemory>& memory, Name tag, std::size_t first) {
  Buffer buffer = Buffer::allocate(memory, u8, {kBytes}, {.tag = tag}).value();
  EXPECT_TRUE(buffer.copyin(counting_bytes(kBytes, first)));
  return buffer;
}

Bytes contents(const Buffer& buffer) {
  Bytes bytes(buffer.size());
  EXPECT_TRUE(buffer.copyout(bytes));
  return bytes;
}

TEST(EvictTrim, FreesWhatWasReleasedBeforeItsLastUseWasReached) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto memory = make_evictable(lagging).value();
  const auto queue = lagging->lagging_queue();
  std::optional<Buffer> buffer = Buffer::allocate(memory, u8, {kBytes}).value();
  ASSERT_TRUE(queue->fill(buffer->window().value(), 1));
  ASSERT_TRUE(queue->submit());
  buffer.reset();
  EXPECT_EQ(memory->trim(0), 0u) << "in use";
  queue->reach_all();
  EXPECT_GE(memory->trim(0), kBytes);
  EXPECT_EQ(memory->trim(0), 0u);
}

TEST_P(Evict, BringsContentsBackToTheSameAddress) {
  const DevicePtr device = open();
  for (const Contents how : {kept(), Contents::kToFile}) {
    const auto memory = make_evictable(device).value();
    const Buffer buffer = filled(memory, "model", 3);
    const Buffer view = buffer.view(100, 1000).value();
    const std::uint64_t address = buffer.native_handle();
    const std::size_t resident = memory->counters().resident_bytes;
    EXPECT_GE(resident, kBytes);
    EXPECT_EQ(memory->evict("model", how).value(), resident);
    EXPECT_TRUE(memory->is_evicted(buffer).value());
    EXPECT_EQ(memory->counters().resident_bytes, 0u);
    EXPECT_EQ(memory->counters().evicted_bytes, resident);
    EXPECT_EQ(memory->counters().spilled_bytes, kBytes);
    EXPECT_EQ(memory->wake("model").value(), resident);
    EXPECT_FALSE(memory->is_evicted(view).value());
    EXPECT_EQ(buffer.native_handle(), address);
    EXPECT_EQ(contents(buffer), counting_bytes(kBytes, 3));
    EXPECT_EQ(contents(view), counting_bytes(1000, 103));
    EXPECT_EQ(memory->counters().spilled_bytes, 0u);
  }
}

TEST_P(Evict, KeepsContentsWithAnAllocatorOfAnotherDevice) {
  const auto other = doubles::LaggingDevice::make();
  const auto memory = make_evictable(open()).value();
  const Buffer buffer = filled(memory, "model", 3);
  EXPECT_TRUE(fails_with(memory->evict("model", AllocatorPtr()), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(memory->evict("model", memory), Code::kUnsupported)) << "itself";
  other->set_budget(kBytes - 1);
  EXPECT_TRUE(fails_with(memory->evict("model", other), Code::kOutOfMemory));
  EXPECT_FALSE(memory->is_evicted(buffer).value());
  EXPECT_EQ(memory->counters().spilled_bytes, 0u);
  other->set_budget(0);
  ASSERT_TRUE(memory->evict("model", other));
  EXPECT_EQ(other->counters().live_bytes, kBytes);
  EXPECT_EQ(memory->counters().spilled_bytes, kBytes);
  EXPECT_EQ(memory->counters().resident_bytes, 0u);
  ASSERT_TRUE(memory->wake("model"));
  EXPECT_EQ(contents(buffer), counting_bytes(kBytes, 3));
  EXPECT_EQ(other->counters().live_bytes, 0u);
  EXPECT_EQ(memory->counters().spilled_bytes, 0u);
}

TEST_P(Evict, GivesUpWhatAnAllocatorKeepsForABufferThatIsReleased) {
  const auto other = doubles::LaggingDevice::make();
  const auto memory = make_evictable(open()).value();
  {
    const Buffer buffer = filled(memory, "model", 3);
    ASSERT_TRUE(memory->evict("model", other));
    EXPECT_EQ(other->counters().live_bytes, kBytes);
  }
  EXPECT_EQ(other->counters().live_bytes, 0u);
  EXPECT_EQ(memory->counters().evicted_bytes, 0u);
}

TEST_P(Evict, ForgetsContentsOnlyWhenAskedTo) {
  const auto memory = make_evictable(open()).value();
  const Buffer buffer = filled(memory, "cache", 1);
  ASSERT_TRUE(memory->evict("cache", Contents::kDrop));
  EXPECT_EQ(memory->counters().spilled_bytes, 0u);
  ASSERT_TRUE(memory->wake("cache"));
  EXPECT_NE(contents(buffer), counting_bytes(kBytes, 1));
  ASSERT_TRUE(buffer.copyin(counting_bytes(kBytes, 2))) << "the memory is usable again";
  EXPECT_EQ(contents(buffer), counting_bytes(kBytes, 2));
}

TEST_P(Evict, TouchesOnlyBuffersWithTheTag) {
  const auto memory = make_evictable(open()).value();
  const Buffer a = filled(memory, "a", 1);
  const Buffer b = filled(memory, "b", 2);
  ASSERT_TRUE(memory->evict("a", kept()));
  EXPECT_TRUE(memory->is_evicted(a).value());
  EXPECT_FALSE(memory->is_evicted(b).value());
  EXPECT_EQ(contents(b), counting_bytes(kBytes, 2));
  EXPECT_EQ(memory->wake("b").value(), 0u) << "it was awake";
  EXPECT_GT(memory->evict({}, kept()).value(), 0u) << "no tag: all";
  EXPECT_TRUE(memory->is_evicted(b).value());
  ASSERT_TRUE(memory->wake({}));
  EXPECT_EQ(contents(a), counting_bytes(kBytes, 1));
  EXPECT_EQ(contents(b), counting_bytes(kBytes, 2));
}

TEST_P(Evict, ReadsBackedContentsFromTheirFileAndSpillsNothing) {
  const test::TemporaryFolder folder;
  const Bytes weights = counting_bytes(kBytes, 77);
  const std::string path = folder.write("weights", weights);
  const auto memory = make_evictable(open()).value();
  const Buffer buffer = filled(memory, "weights", 77);
  const Buffer file = map_file(path).value();
  ASSERT_TRUE(memory->back_with(buffer, file));
  ASSERT_TRUE(memory->evict("weights", kept()));
  EXPECT_EQ(memory->counters().spilled_bytes, 0u);
  ASSERT_TRUE(memory->wake("weights"));
  EXPECT_EQ(contents(buffer), weights);
}

TEST_P(Evict, RefusesToBackWhatIsNotWholeOrNotItsOwn) {
  const DevicePtr device = open();
  const auto memory = make_evictable(device).value();
  const Buffer buffer = filled(memory, {}, 0);
  const Buffer other = Buffer::allocate(berth::device("CPU").value(), u8, {kBytes}).value();
  EXPECT_TRUE(fails_with(memory->back_with(other, other), Code::kNotOwned));
  EXPECT_TRUE(fails_with(memory->is_evicted(other), Code::kNotOwned));
  EXPECT_TRUE(fails_with(memory->back_with(buffer, other.view(0, 5).value()), Code::kSizeMismatch));
  for (const std::size_t offset : {0, 1})  // a view that begins where the buffer does is a view too
    EXPECT_TRUE(fails_with(memory->back_with(buffer.view(offset, 5).value(), other.view(0, 5).value()),
                           Code::kInvalidArgument));
}

TEST_P(Evict, FreesBuffersThatAreAway) {
  const auto memory = make_evictable(open()).value();
  {
    const Buffer buffer = filled(memory, "gone", 1);
    ASSERT_TRUE(memory->evict("gone", kept()));
  }
  EXPECT_EQ(memory->counters().evicted_bytes, 0u);
  EXPECT_EQ(memory->counters().spilled_bytes, 0u);
  EXPECT_EQ(memory->wake("gone").value(), 0u);
}

TEST_P(Evict, WaitsForSubmittedWork) {
  const DevicePtr device = open();
  const auto memory = make_evictable(device).value();
  const Buffer buffer = filled(memory, "busy", 1);
  const QueuePtr queue = device->make_queue().value();
  ASSERT_TRUE(queue->fill(buffer.window().value(), 9));
  ASSERT_TRUE(queue->submit());
  ASSERT_TRUE(memory->evict("busy", kept()));
  ASSERT_TRUE(memory->wake("busy"));
  EXPECT_EQ(contents(buffer), Bytes(kBytes, std::byte{9}));
}

TEST_P(Evict, GivesZeroesAndZeroBytes) {
  const auto memory = make_evictable(open()).value();
  const Buffer zeroed = Buffer::allocate(memory, u8, {5000}, {.zero = true}).value();
  EXPECT_EQ(contents(zeroed), Bytes(5000));
  const Buffer none = Buffer::allocate(memory, u8, {0}).value();
  EXPECT_EQ(none.size(), 0u);
  EXPECT_TRUE(fails_with(Buffer::allocate(memory, u8, {64}, {.alignment = std::size_t{1} << 30}), Code::kUnsupported));
  EXPECT_TRUE(fails_with(memory->allocate({.bytes = 64, .alignment = 3}), Code::kInvalidArgument));
  EXPECT_FALSE(memory->allocate({.bytes = SIZE_MAX - 10}).has_value());
}

TEST_P(Evict, CountsWhatIsInPlaceAsTheDevicesAndKeepsToTheBudget) {
  const DevicePtr device = open();
  const DeviceCounters before = device->counters();
  {
    const auto memory = make_evictable(device).value();
    const Buffer model = filled(memory, "model", 1);
    const std::size_t pages = memory->counters().resident_bytes;
    EXPECT_EQ(device->counters().live_bytes, before.live_bytes + pages);
    EXPECT_EQ(device->counters().live_count, before.live_count + 1);
    EXPECT_GE(device->counters().peak_bytes, before.live_bytes + pages);

    const std::size_t budget = before.live_bytes + pages;
    device->set_budget(budget);
    const auto refused = Buffer::allocate(memory, u8, {kBytes}, {.label = "second"});
    ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
    ASSERT_NE(refused.error().out_of_memory(), nullptr);
    EXPECT_EQ(refused.error().out_of_memory()->cause, OutOfMemory::Cause::kBudget);
    EXPECT_EQ(refused.error().out_of_memory()->budget_needed, budget + pages);
    EXPECT_EQ(device->counters().live_bytes, before.live_bytes + pages) << "a failed call changes nothing";

    ASSERT_TRUE(memory->evict("model", kept()));
    EXPECT_EQ(device->counters().live_bytes, before.live_bytes);
    EXPECT_EQ(device->counters().live_count, before.live_count);
    {
      const Buffer second = Buffer::allocate(memory, u8, {kBytes}, {.label = "second"}).value();
      const auto asleep = memory->wake("model");
      ASSERT_TRUE(fails_with(asleep, Code::kOutOfMemory));
      ASSERT_NE(asleep.error().out_of_memory(), nullptr);
      EXPECT_EQ(asleep.error().out_of_memory()->holder_to_free, "second") << asleep.error().message();
      EXPECT_TRUE(memory->is_evicted(model).value());
    }
    ASSERT_TRUE(memory->wake("model"));
    EXPECT_EQ(device->counters().live_bytes, budget);
    EXPECT_EQ(contents(model), counting_bytes(kBytes, 1));
    device->set_budget(0);
  }
  EXPECT_EQ(device->counters().live_bytes, before.live_bytes);
  EXPECT_EQ(device->counters().live_count, before.live_count);
}

TEST_P(Evict, LetsAPressureCallbackEvictHereToMakeRoom) {
  const DevicePtr device = open();
  const auto memory = make_evictable(device).value();
  const Buffer first = filled(memory, "first", 1);
  device->set_budget(device->counters().live_bytes);
  device->on_pressure([&](const BlockSpec&) {
    const bool to_second = memory->is_evicted(first).value();
    return memory->evict(to_second ? "second" : "first", kept()).value() > 0;
  });
  const Buffer second = filled(memory, "second", 2);
  EXPECT_TRUE(memory->is_evicted(first).value());
  EXPECT_TRUE(memory->wake("first")) << "the second goes in turn";
  EXPECT_TRUE(memory->is_evicted(second).value());
  device->on_pressure({});
  device->set_budget(0);
  EXPECT_EQ(contents(first), counting_bytes(kBytes, 1));
  ASSERT_TRUE(memory->wake("second"));
  EXPECT_EQ(contents(second), counting_bytes(kBytes, 2));
}

INSTANTIATE_TEST_SUITE_P(Devices, Evict, ::testing::Values("CPU", "CUDA"),
                         [](const auto& each) { return std::string(each.param); });

TEST(EvictCpu, GivesPhysicalPagesBackAndFaultsOnAStrayUse) {
  const auto memory = make_evictable(device("CPU").value()).value();
  const Buffer buffer = filled(memory, "model", 1);
  auto* const start = static_cast<std::byte*>(buffer.as_raw_ptr());
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t pages = kBytes / page + 1;
  const auto resident = [&] {
    std::vector<unsigned char> in_core(pages);
    EXPECT_EQ(mincore(start, pages * page, in_core.data()), 0);
    return static_cast<std::size_t>(std::count_if(in_core.begin(), in_core.end(), [](auto b) { return b & 1; }));
  };
  EXPECT_EQ(resident(), pages);
  ASSERT_TRUE(memory->evict("model", Contents::kToFile));
  EXPECT_EQ(resident(), 0u) << "by the kernel's own account";
  EXPECT_DEATH({ *static_cast<volatile std::byte*>(start) = std::byte{1}; }, "");
  ASSERT_TRUE(memory->wake("model"));
  EXPECT_EQ(contents(buffer), counting_bytes(kBytes, 1));
}

TEST(EvictCpu, RefusesToKeepHostMemoryInHostMemory) {
  const auto memory = make_evictable(device("CPU").value()).value();
  EXPECT_TRUE(fails_with(memory->evict("x", Contents::kToHost), Code::kUnsupported));
}

TEST(EvictCpu, LeavesABufferInPlaceWhenItsContentsCannotBeSpilled) {
  const auto memory = make_evictable(device("CPU").value(), {.folder = "/nowhere"}).value();
  const Buffer buffer = filled(memory, "model", 4);
  EXPECT_TRUE(fails_with(memory->evict("model", Contents::kToFile), Code::kIo));
  EXPECT_FALSE(memory->is_evicted(buffer).value());
  EXPECT_EQ(contents(buffer), counting_bytes(kBytes, 4));
}

TEST(EvictCpu, IsUnsupportedWhereAddressesAndMemoryAreOne) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(16));
  EXPECT_TRUE(fails_with(make_evictable(device("DISK:" + path).value()), Code::kUnsupported));
}

class EvictOnDouble : public cuda_test::CudaDoubleTest {};

TEST_F(EvictOnDouble, GivesTheGpusMemoryToOthersWhileItIsAway) {
  const CudaDoubleOptions small{.memory_bytes = std::size_t{8} << 20};
  ASSERT_EQ(cuda_double().reset(&small), 1);
  const DevicePtr gpu = device("CUDA").value();
  const auto memory = make_evictable(gpu).value();
  const Buffer model = filled(memory, "model", 5);
  EXPECT_EQ(cuda_double().live_bytes(0), std::size_t{4} << 20);
  EXPECT_TRUE(fails_with(Buffer::allocate(gpu, u8, {5 << 20}), Code::kOutOfMemory));
  ASSERT_TRUE(memory->evict("model", Contents::kToHost));
  EXPECT_EQ(cuda_double().live_bytes(0), 0u);
  {
    const Buffer other = Buffer::allocate(gpu, u8, {5 << 20}).value();
    EXPECT_TRUE(fails_with(memory->wake("model"), Code::kOutOfMemory));
    EXPECT_TRUE(memory->is_evicted(model).value()) << "it can be woken later";
  }
  ASSERT_TRUE(gpu->synchronize());
  ASSERT_TRUE(memory->wake("model"));
  EXPECT_EQ(contents(model), counting_bytes(kBytes, 5));
}

TEST_F(EvictOnDouble, IsUnsupportedWithoutVirtualMemory) {
  const CudaDoubleOptions without{.virtual_memory = 0};
  ASSERT_EQ(cuda_double().reset(&without), 1);
  EXPECT_TRUE(fails_with(make_evictable(device("CUDA").value()), Code::kUnsupported));
}

TEST_F(EvictOnDouble, LosesNoContentsWhicheverDriverCallFails) {
  for (std::uint64_t nth = 1;; ++nth) {
    const CudaDoubleOptions options;
    ASSERT_EQ(cuda_double().reset(&options), 1) << nth;
    {
      const DevicePtr gpu = device("CUDA").value();
      const auto memory = make_evictable(gpu).value();
      const Buffer buffer = Buffer::allocate(memory, u8, {1000}, {.tag = "t"}).value();
      ASSERT_TRUE(buffer.copyin(counting_bytes(1000, nth)));
      cuda_double().fail(nullptr, nth, cuda::kErrorInvalidValue, 0);
      const auto evicted = memory->evict("t", Contents::kToHost);
      const auto woken = memory->wake("t");
      const bool over = cuda_double().stop_failing() == 1;
      // Whatever failed, trying again gets the bytes back.
      if (!woken) {
        ASSERT_TRUE(memory->wake("t")) << nth;
      }
      EXPECT_FALSE(memory->is_evicted(buffer).value());
      EXPECT_EQ(contents(buffer), counting_bytes(1000, nth)) << "call " << nth;
      if (over) {
        EXPECT_TRUE(evicted.has_value() && woken.has_value());
        EXPECT_GT(nth, 15u);
        return;
      }
    }
    EXPECT_TRUE(cuda_test::cuda_violations("race:").empty() && cuda_test::cuda_violations("misuse:").empty()) << nth;
    cuda_double().clear_violations();
  }
}

}  // namespace
}  // namespace berth
