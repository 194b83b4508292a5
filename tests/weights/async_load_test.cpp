#include "berth/weights/async_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "berth/alloc/growable.h"
#include "berth/alloc/limit.h"
#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/seed.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;

// A file of tensors of many sizes: some empty, some longer than one read.
class AsyncLoading : public ::testing::TestWithParam<ReadMethod> {
 protected:
  AsyncLoading() {
    const DevicePtr cpu = device("CPU").value();
    for (const std::size_t count : {5u, 3'000'000u, 0u, 1u, 1000u, 2'500'000u, 0u}) {
      buffers_.push_back(Buffer::allocate(cpu, u32, {count}).value());
      if (count > 0) {
        auto values = buffers_.back().as_slice_mut<std::uint32_t>().value();
        for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u + count);
      }
      names_.push_back("t" + std::to_string(buffers_.size()));
    }
    std::vector<NamedBuffer> tensors;
    for (std::size_t i = 0; i < names_.size(); ++i) tensors.push_back({names_[i], buffers_[i]});
    path_ = (folder_.path() / "a.safetensors").string();
    save_safetensors(path_, tensors).value();
    file_ = open_weights(path_).value();
  }

  AsyncLoadOptions options(std::size_t share_below = std::size_t{8} << 20) const {
    return {.method = GetParam(), .readers = 3, .share_below = share_below};
  }
  std::vector<std::string_view> names() const { return {names_.begin(), names_.end()}; }
  void expect_bytes(const Buffer& loaded, std::string_view name) const {
    const auto at = static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    std::vector<std::byte> seen(loaded.size());
    const auto copied = loaded.copyout(seen);
    ASSERT_TRUE(copied) << copied.error().message();
    const auto wanted = buffers_[at].as_host_bytes().value();
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), wanted.begin(), wanted.end())) << name;
  }

  const test::TemporaryFolder folder_;
  std::string path_;
  std::vector<Buffer> buffers_;
  std::vector<std::string> names_;
  WeightFile file_;
};

TEST_P(AsyncLoading, ArrivesAsAPlainLoadWould) {
  const DevicePtr cpu = device("CPU").value();
  for (const std::size_t share_below : {std::size_t{0}, std::size_t{8} << 20}) {
    AsyncLoad load = load_all_async(file_, cpu, options(share_below)).value();
    ASSERT_EQ(load.buffers().size(), names_.size());
    ASSERT_TRUE(load.finish());
    for (const Timepoint arrival : load.arrivals()) EXPECT_TRUE(is_reached(arrival));
    const auto listed = file_.tensors();
    for (std::size_t i = 0; i < listed.size(); ++i) {
      EXPECT_EQ(load.buffers()[i].dtype(), listed[i].dtype);
      expect_bytes(load.buffers()[i], listed[i].name);
    }
  }
}

TEST_P(AsyncLoading, ArrivesInTheOrderRequested) {
  const DevicePtr cpu = device("CPU").value();
  for (const std::uint32_t seed : test::seeds(10)) {
    SCOPED_TRACE(seed);
    std::vector<std::string_view> order = names();
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    const AsyncLoad load = load_async(file_, order, cpu, options(0)).value();
    for (std::size_t i = 0; i < order.size(); ++i) {
      ASSERT_TRUE(wait(load.arrivals()[i]));
      if (load.buffers()[i].size() == 0) continue;
      const auto seen = load.buffers()[i].as_host_bytes().value();  // without a wait of its own
      const auto at = static_cast<std::size_t>(std::find(names_.begin(), names_.end(), order[i]) - names_.begin());
      const auto wanted = buffers_[at].as_host_bytes().value();
      EXPECT_TRUE(std::equal(seen.begin(), seen.end(), wanted.begin(), wanted.end())) << order[i];
    }
  }
}

TEST_P(AsyncLoading, WaitsForATensorNoLongerThanAsked) {
  const DevicePtr cpu = device("CPU").value();
  AsyncLoad load = load_all_async(file_, cpu, options()).value();
  using std::chrono::nanoseconds;
  const std::size_t last = load.buffers().size() - 1;
  // However often the time is over first, the tensor arrives in the end.
  while (!load.wait(last, nanoseconds(1)).value()) continue;
  EXPECT_TRUE(is_reached(load.arrivals()[last]));
  for (const nanoseconds time : {nanoseconds::min(), nanoseconds(0), nanoseconds::max()})
    for (std::size_t i = 0; i <= last; ++i) EXPECT_TRUE(load.wait(i, time).value()) << time.count();
  AsyncLoad stopped = load_all_async(file_, cpu, options()).value();
  stopped.cancel();
  const bool all_arrived = stopped.finish().has_value();
  EXPECT_TRUE(all_arrived || fails_with(stopped.wait(last, nanoseconds::max()), Code::kCancelled));
}

TEST_P(AsyncLoading, ABlockingCopyWaitsForTheArrival) {
  const DevicePtr cpu = device("CPU").value();
  AsyncLoad load = load_all_async(file_, cpu, options()).value();
  for (std::size_t i = load.buffers().size(); i-- > 0;) expect_bytes(load.buffers()[i], file_.tensors()[i].name);
}

TEST_P(AsyncLoading, AQueueWaitsForAnArrivalAsForOtherWork) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  AsyncLoad load = load_all_async(file_, cpu, options()).value();
  for (std::size_t i = 0; i < load.buffers().size(); ++i) {
    const Buffer copy = Buffer::allocate(cpu, load.buffers()[i].dtype(), load.buffers()[i].shape()).value();
    ASSERT_TRUE(queue->wait_for(load.arrivals()[i]));
    ASSERT_TRUE(queue->copy(load.buffers()[i].window().value(), copy.window().value()));
    ASSERT_TRUE(queue->finish());
    expect_bytes(copy, file_.tensors()[i].name);
  }
}

TEST_P(AsyncLoading, DroppingTheLoadCancelsItAndLeavesNothing) {
  const DevicePtr cpu = device("CPU").value();
  const std::size_t before = cpu->counters().live_bytes;
  for (const std::uint32_t seed : test::seeds(30)) {
    std::vector<Buffer> kept;
    Timepoint last;
    {
      const AsyncLoad load = load_all_async(file_, cpu, options(0)).value();
      last = load.arrivals().back();
      if (seed % 3 == 0) kept.assign(load.buffers().begin(), load.buffers().end());
      if (seed % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(seed % 3000));
    }
    EXPECT_TRUE(is_reached(last)) << "a timeline that ended";
    for (const Buffer& buffer : kept) {
      std::vector<std::byte> bytes(buffer.size());
      EXPECT_TRUE(buffer.copyout(bytes)) << "memory, whatever it holds";
    }
  }
  EXPECT_EQ(cpu->counters().live_bytes, before);
}

TEST_P(AsyncLoading, BuffersOutliveTheLoadAndTheirHandles) {
  const DevicePtr cpu = device("CPU").value();
  Buffer kept;
  {
    AsyncLoad load = load_all_async(file_, cpu, options()).value();
    kept = load.buffers()[0];
    AsyncLoad moved = std::move(load);
    ASSERT_TRUE(moved.finish());
    load = std::move(moved);
    EXPECT_TRUE(load.finish()) << "again";
  }
  expect_bytes(kept, file_.tensors()[0].name);
}

TEST_P(AsyncLoading, CancellingFailsTheWaits) {
  const DevicePtr cpu = device("CPU").value();
  int cancelled = 0;
  for (int i = 0; i < 20; ++i) {
    AsyncLoad load = load_all_async(file_, cpu, options()).value();
    load.cancel();
    if (const auto done = load.finish(); !done) {
      ++cancelled;
      EXPECT_EQ(done.error().code(), Code::kCancelled);
      EXPECT_TRUE(fails_with(wait(load.arrivals().back()), Code::kCancelled));
    }
  }
  EXPECT_GT(cancelled, 0) << "of 20 loads of 22 MB";
}

TEST_P(AsyncLoading, AFileThatWasCutFailsWhatItLacksAndNothingElse) {
  const DevicePtr cpu = device("CPU").value();
  const auto tensors = file_.tensors();
  // In the middle of the last tensor with bytes.
  const TensorInfo* last = nullptr;
  std::size_t number = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].bytes > 0) last = &tensors[number = i];
  std::filesystem::resize_file(path_, last->offset + last->bytes / 2);
  AsyncLoad load = load_all_async(file_, cpu, options(0)).value();
  ASSERT_GT(number, 0u);
  ASSERT_TRUE(wait(load.arrivals()[number - 1]));
  for (std::size_t i = 0; i < number; ++i) expect_bytes(load.buffers()[i], tensors[i].name);
  const auto failed = load.finish();
  ASSERT_TRUE(fails_with(failed, Code::kIo));
  EXPECT_NE(failed.error().message().find(path_), std::string::npos);
  std::vector<std::byte> bytes(load.buffers()[number].size());
  EXPECT_TRUE(fails_with(load.buffers()[number].copyout(bytes), Code::kIo)) << "no made-up bytes";
  const QueuePtr queue = cpu->make_queue().value();
  EXPECT_TRUE(fails_with(queue->wait_for(load.arrivals()[number]), Code::kIo));
}

TEST_P(AsyncLoading, RefusesWhatAPlainLoadRefuses) {
  const DevicePtr cpu = device("CPU").value();
  const std::string_view missing[] = {"t1", "nobody"};
  EXPECT_TRUE(fails_with(load_async(file_, missing, cpu, options()), Code::kNotFound));
  EXPECT_TRUE(fails_with(load_async(file_, names(), nullptr, options()), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(load_all_async(file_, make_limit(cpu, 1000), options()), Code::kOutOfMemory));
  AsyncLoad nothing = load_all_async(WeightFile(), cpu, options()).value();
  EXPECT_TRUE(nothing.finish());
  nothing.cancel();
  EXPECT_TRUE(nothing.buffers().empty());
  // A tensor twice is two buffers.
  const std::string_view twice[] = {"t5", "t5"};
  AsyncLoad load = load_async(file_, twice, cpu, options()).value();
  for (const Buffer& buffer : load.buffers()) expect_bytes(buffer, "t5");
}

TEST_P(AsyncLoading, MemoryThatMayMoveStaysUntilItsTensorsHaveArrived) {
  const DevicePtr cpu = device("CPU").value();
  const auto memory = make_growable(cpu, {.step_bytes = std::size_t{1} << 20}).value();
  Buffer hole = Buffer::allocate(memory, u8, {std::size_t{4} << 20}).value();
  AsyncLoad load = load_all_async(file_, memory, options(0)).value();
  hole = {};
  static_cast<void>(memory->defragment());
  ASSERT_TRUE(load.finish());
  for (std::size_t i = 0; i < load.buffers().size(); ++i) expect_bytes(load.buffers()[i], file_.tensors()[i].name);
}

TEST_P(AsyncLoading, ArrivesOnCuda) {
  const cuda_test::CudaChoice choice;
  {
    const DevicePtr gpu = device("CUDA:0").value();
    const QueuePtr queue = gpu->make_queue().value();
    AsyncLoad load = load_all_async(file_, gpu, options()).value();
    EXPECT_EQ(load.method(), ReadMethod::kThreads);
    for (std::size_t i = 0; i < load.buffers().size(); ++i) {
      const Buffer copy = Buffer::allocate(gpu, load.buffers()[i].dtype(), load.buffers()[i].shape()).value();
      ASSERT_TRUE(queue->wait_for(load.arrivals()[i]));
      ASSERT_TRUE(queue->copy(load.buffers()[i].window().value(), copy.window().value()));
      expect_bytes(copy, file_.tensors()[i].name);
    }
    const AsyncLoad dropped = load_all_async(file_, gpu, options(0)).value();
  }
  if (!cuda_test::on_real_gpu()) cuda_test::expect_nothing_left();
}

TEST_P(AsyncLoading, ArrivesOnWebGpu) {
  const auto gpu = device("WEBGPU");
  if (!gpu) GTEST_SKIP() << gpu.error().message();
  AsyncLoad load = load_all_async(file_, *gpu, options()).value();
  for (std::size_t i = 0; i < load.buffers().size(); ++i) expect_bytes(load.buffers()[i], file_.tensors()[i].name);
}

TEST(ReadMethods, HaveNames) {
  EXPECT_EQ(to_string(ReadMethod::kThreads), "threads");
  EXPECT_EQ(to_string(ReadMethod::kRing), "ring");
}

INSTANTIATE_TEST_SUITE_P(Methods, AsyncLoading, ::testing::Values(ReadMethod::kThreads, ReadMethod::kRing),
                         [](const auto& each) {
                           return std::string(each.param == ReadMethod::kRing ? "Ring" : "Threads");
                         });

}  // namespace
}  // namespace berth
