#include "devices/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <thread>

#include "berth/berth.h"
#include "doubles/cuda/cuda_kernels.h"
#include "support/support.h"

namespace berth {

using namespace internal;

namespace {

using cuda_test::cuda_double;
using cuda_test::cuda_violations;
using test::counting_bytes;
using test::fails_with;
using Bytes = std::vector<std::byte>;

class CudaDeviceTest : public cuda_test::CudaTest {};
class CudaOnDouble : public cuda_test::CudaDoubleTest {};

TEST_F(CudaDeviceTest, TellsWhatItIs) {
  const DevicePtr gpu = device("cuda").value();
  EXPECT_EQ(gpu->name(), "CUDA:0");
  EXPECT_EQ(gpu->kind(), "CUDA");
  EXPECT_EQ(device("CUDA:0").value(), gpu) << "one device while it lives";
  const CudaInfo info = cuda_info(*gpu).value();
  EXPECT_EQ(info.ordinal, 0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.total_bytes, 0u);
  EXPECT_GE(info.capability_major, 5);
  EXPECT_NE(info.uuid, (std::array<std::uint8_t, 16>{}));
  EXPECT_EQ(gpu->limits().total_bytes, info.total_bytes);
  EXPECT_NE(gpu->description().find(info.name), std::string::npos);
  EXPECT_TRUE(fails_with(cuda_info(*device("CPU").value()), Code::kInvalidArgument));
}

TEST_F(CudaDeviceTest, TellsWhatItsDriverCanStillGive) {
  const DevicePtr gpu = device("CUDA").value();
  const std::size_t before = cuda_free_bytes(*gpu).value();
  EXPECT_GT(before, 0u);
  EXPECT_LE(before, gpu->limits().total_bytes);
  const auto held = Buffer::allocate(gpu, u8, {std::size_t{64} << 20}).value();
  EXPECT_LE(cuda_free_bytes(*gpu).value() + (std::size_t{64} << 20), before);
  EXPECT_TRUE(fails_with(cuda_free_bytes(*device("CPU").value()), Code::kInvalidArgument));
}

TEST_F(CudaOnDouble, ListsItsPeers) {
  EXPECT_EQ(cuda_info(*device("CUDA:0").value()).value().peers, std::vector<int>{1});
  EXPECT_EQ(cuda_info(*device("CUDA:1").value()).value().peers, std::vector<int>{0});
}

TEST_F(CudaOnDouble, RepeatsTheDriversWordsForAnOrdinalThatIsNotThere) {
  const auto opened = device("CUDA:7");
  ASSERT_TRUE(fails_with(opened, Code::kDeviceUnavailable));
  EXPECT_NE(opened.error().message().find("invalid device ordinal"), std::string::npos) << opened.error().message();
  EXPECT_NE(opened.error().message().find("has 2 devices"), std::string::npos) << opened.error().message();
}

TEST_F(CudaOnDouble, IsNotThereWithoutADriver) {
  setenv("BERTH_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  const auto opened = device("CUDA");
  ASSERT_TRUE(fails_with(opened, Code::kDeviceUnavailable));
  EXPECT_NE(opened.error().message().find("install the NVIDIA driver"), std::string::npos);
}

TEST_F(CudaOnDouble, IsOutOfMemoryAsAValueThatExplains) {
  const CudaDoubleOptions small{.memory_bytes = 1 << 20};
  ASSERT_EQ(cuda_double().reset(&small), 1);
  const DevicePtr gpu = device("CUDA").value();
  const Buffer held = Buffer::allocate(gpu, u8, {700'000}, {.label = "weights"}).value();
  const auto refused = Buffer::allocate(gpu, u8, {700'000}, {.label = "cache"});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  ASSERT_NE(refused.error().out_of_memory(), nullptr);
  EXPECT_EQ(refused.error().out_of_memory()->live_bytes, 700'000u);
  EXPECT_NE(refused.error().message().find("weights"), std::string::npos) << refused.error().message();
}

TEST_F(CudaDeviceTest, KeepsDeviceMemoryFromTheHost) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer buffer = Buffer::allocate(gpu, f32, {4}).value();
  EXPECT_TRUE(fails_with(buffer.as_host_bytes(), Code::kNotCpuAccessible));
  EXPECT_TRUE(fails_with(buffer.as_slice<float>(), Code::kNotCpuAccessible));
  EXPECT_EQ(buffer.as_raw_ptr(), nullptr);
  EXPECT_NE(buffer.native_handle(), 0u);
}

TEST_F(CudaDeviceTest, GivesManagedMemoryToBothSides) {
  const DevicePtr gpu = device("CUDA").value();
  if (!cuda_info(*gpu).value().concurrent_managed_access) GTEST_SKIP() << "no concurrent managed memory here";
  const Buffer buffer = Buffer::allocate(gpu, u32, {256}, {.host = HostAccess::kRequired, .zero = true}).value();
  std::span<std::uint32_t> values = buffer.as_slice_mut<std::uint32_t>().value();
  EXPECT_EQ(values[255], 0u);
  for (std::uint32_t i = 0; i < 256; ++i) values[i] = i;
  const Kernel add = cuda_test::make_add_kernel(*gpu).value();
  const Buffer out = Buffer::allocate(gpu, u32, {256}, {.host = HostAccess::kRequired}).value();
  const QueuePtr queue = gpu->make_queue().value();
  const std::uint32_t constant = 1000;
  ASSERT_TRUE(queue->launch(add,
                            std::array{KernelArgument{buffer.window().value(), Access::kRead},
                                       KernelArgument{out.window().value(), Access::kWrite}},
                            {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(out.as_slice<std::uint32_t>().value()[255], 1255u);
}

TEST_F(CudaOnDouble, FreesManagedMemoryAfterWorkThatIsStillUnderWay) {
  const DevicePtr gpu = device("CUDA").value();
  const QueuePtr queue = gpu->make_queue().value();
  Bytes seen(4096);
  {
    const Buffer buffer = Buffer::allocate(gpu, u8, {4096}, {.host = HostAccess::kRequired, .zero = true}).value();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 7));
    ASSERT_TRUE(queue->read(buffer.window().value(), seen));
  }
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(seen, Bytes(4096, std::byte{7}));
}

TEST_F(CudaOnDouble, RefusesAHostPointerWhereThereIsNoManagedMemory) {
  const CudaDoubleOptions without{.managed = 0};
  ASSERT_EQ(cuda_double().reset(&without), 1);
  const DevicePtr gpu = device("CUDA").value();
  EXPECT_TRUE(fails_with(Buffer::allocate(gpu, u8, {64}, {.host = HostAccess::kRequired}), Code::kUnsupported));
}

TEST_F(CudaOnDouble, PrefetchesManagedMemoryOnceAtASubmit) {
  const DevicePtr gpu = device("CUDA").value();
  const QueuePtr queue = gpu->make_queue().value();
  std::vector<Buffer> buffers;
  for (int i = 0; i < 5; ++i)
    buffers.push_back(Buffer::allocate(gpu, u8, {4096}, {.host = HostAccess::kRequired}).value());
  buffers.pop_back();  // gone before it mattered
  EXPECT_EQ(cuda_double().calls("cuMemPrefetchAsync"), 0u);
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cuda_double().calls("cuMemPrefetchAsync"), 4u);
  EXPECT_EQ(cuda_double().calls("cuMemAdvise"), 4u);
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cuda_double().calls("cuMemPrefetchAsync"), 4u);
  EXPECT_EQ(gpu->residency()->counters().commits, 1u);
}

TEST_F(CudaOnDouble, WorksWithADriverThatHasNoPrefetch) {
  const CudaDoubleOptions old{.driver_version = 12000};
  ASSERT_EQ(cuda_double().reset(&old), 1);
  const cuda::Driver* const driver = cuda::Driver::open().value();
  // The table was filled when the newer driver was opened: the device must go by what it has.
  EXPECT_EQ(driver->cuMemPrefetchAsync == nullptr, driver->version < 12020);
}

TEST_F(CudaDeviceTest, CopiesBetweenTwoGpusWithoutTheHost) {
  const auto second = device("CUDA:1");
  if (!second) GTEST_SKIP() << second.error().message();
  const DevicePtr first = device("CUDA:0").value();
  const Bytes bytes = counting_bytes(100'000);
  const Buffer a = Buffer::allocate(first, u8, {bytes.size()}).value();
  ASSERT_TRUE(a.copyin(bytes));
  const Buffer b = Buffer::allocate(*second, u8, {bytes.size()}).value();
  ASSERT_TRUE(b.copy_from(a));
  Bytes seen(bytes.size());
  ASSERT_TRUE(b.copyout(seen));
  EXPECT_EQ(seen, bytes);
  if (!cuda_test::on_real_gpu()) {
    EXPECT_EQ(cuda_double().calls("cuMemcpyPeerAsync"), 1u);
    EXPECT_EQ(cuda_double().traffic().host_to_device, bytes.size());
  }
}

TEST_F(CudaOnDouble, FreesMemoryThatAnotherGpuUsedLast) {
  const DevicePtr first = device("CUDA:0").value();
  const DevicePtr second = device("CUDA:1").value();
  const QueuePtr queue = second->make_queue().value();
  const Buffer target = Buffer::allocate(second, u8, {4096}).value();
  {
    const Buffer source = Buffer::allocate(first, u8, {4096}, {.zero = true}).value();
    ASSERT_TRUE(queue->copy(source.window().value(), target.window().value()));
  }
  // The double would report the free as a race if it did not come after the copy.
  Bytes seen(4096, std::byte{1});
  ASSERT_TRUE(queue->read(target.window().value(), seen));
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(seen, Bytes(4096));
}

TEST_F(CudaOnDouble, RefusesOtherWorkOnAnotherGpusMemory) {
  const DevicePtr first = device("CUDA:0").value();
  const DevicePtr second = device("CUDA:1").value();
  const Buffer there = Buffer::allocate(second, u32, {256}).value();
  const QueuePtr queue = first->make_queue().value();
  Bytes bytes(1024);
  EXPECT_TRUE(fails_with(queue->write(there.window().value(), bytes), Code::kUnsupported));
  EXPECT_TRUE(fails_with(queue->read(there.window().value(), bytes), Code::kUnsupported));
  EXPECT_TRUE(fails_with(queue->fill(there.window().value(), 1), Code::kUnsupported));
  const Buffer here = Buffer::allocate(first, u32, {256}).value();
  const Kernel add = cuda_test::make_add_kernel(*first).value();
  const std::uint32_t constant = 1;
  for (const auto& [from, to] : {std::pair{here, there}, std::pair{there, here}})
    EXPECT_TRUE(
        fails_with(queue->launch(add,
                                 std::array{KernelArgument{from.window().value(), Access::kRead},
                                            KernelArgument{to.window().value(), Access::kWrite}},
                                 {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))),
                   Code::kInvalidArgument));
  const QueuePtr other = second->make_queue().value();
  EXPECT_TRUE(fails_with(other->launch(add, {}, {}), Code::kInvalidArgument)) << "a kernel belongs to its device";
}

TEST_F(CudaOnDouble, WaitsAcrossQueuesAndGpusWithoutTheHost) {
  const DevicePtr first = device("CUDA:0").value();
  const DevicePtr second = device("CUDA:1").value();
  const QueuePtr one = first->make_queue().value();
  const QueuePtr two = second->make_queue().value();
  const Buffer a = Buffer::allocate(first, u8, {4096}).value();
  const Buffer b = Buffer::allocate(second, u8, {4096}).value();
  cuda_double().clear_calls();
  ASSERT_TRUE(one->fill(a.window().value(), 9));
  const Timepoint filled = one->submit().value();
  ASSERT_TRUE(two->wait_for(filled));
  ASSERT_TRUE(two->copy(a.window().value(), b.window().value()));
  ASSERT_TRUE(two->submit());
  EXPECT_EQ(cuda_double().calls("cuEventSynchronize"), 0u);
  EXPECT_EQ(cuda_double().calls("cuStreamSynchronize"), 0u);
  EXPECT_FALSE(is_reached(filled)) << "nothing has run yet";
  Bytes seen(4096);
  ASSERT_TRUE(two->read(b.window().value(), seen));
  ASSERT_TRUE(two->finish());
  EXPECT_EQ(seen, Bytes(4096, std::byte{9}));
}

TEST_F(CudaOnDouble, CopiesRowsInOneCall) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer a = Buffer::allocate(gpu, u8, {1000}).value();
  const Buffer b = Buffer::allocate(gpu, u8, {1000}).value();
  const QueuePtr queue = gpu->make_queue().value();
  ASSERT_TRUE(queue->fill(a.window().value(), 1));
  ASSERT_TRUE(queue->copy_rows(a.window().value(), 40, b.window().value(), 50, 10, 20));
  EXPECT_EQ(cuda_double().calls("cuMemcpy2DAsync"), 1u);
  EXPECT_EQ(cuda_double().calls("cuMemcpyDtoDAsync"), 0u);
  // Windows that meet do not overlap.
  const Window head = a.view(0, 500).value().window().value(), tail = a.view(500, 500).value().window().value();
  ASSERT_TRUE(queue->copy_rows(head, 50, tail, 50, 10, 10));
  ASSERT_TRUE(queue->copy_rows(tail, 50, head, 50, 10, 10));
  EXPECT_EQ(cuda_double().calls("cuMemcpy2DAsync"), 3u);
  EXPECT_EQ(cuda_double().calls("cuMemcpyDtoDAsync"), 0u);
  ASSERT_TRUE(queue->finish());
}

TEST_F(CudaOnDouble, PutsAllocationsOnTheStreamOfTheQueueThatIsNamed) {
  const DevicePtr gpu = device("CUDA").value();
  const QueuePtr queue = gpu->make_queue().value();
  cuda_double().clear_calls();
  const Buffer buffer = Buffer::allocate(gpu, u8, {64}, {.zero = true, .on = queue->timeline()}).value();
  Bytes seen(64, std::byte{1});
  ASSERT_TRUE(queue->read(buffer.window().value(), seen));
  EXPECT_EQ(cuda_double().calls("cuStreamWaitEvent"), 0u) << "one stream needs no event";
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(seen, Bytes(64));
}

TEST_F(CudaOnDouble, AllocatesAlsoForTheLineOfAnotherGpu) {
  const DevicePtr gpu = device("CUDA:0").value();
  const QueuePtr other = device("CUDA:1").value()->make_queue().value();
  const auto buffer = Buffer::allocate(gpu, u8, {64}, {.zero = true, .on = other->timeline()});
  ASSERT_TRUE(buffer.has_value()) << buffer.error().message();
  Bytes seen(64, std::byte{1});
  ASSERT_TRUE(buffer->copyout(seen));
  EXPECT_EQ(seen, Bytes(64));
}

TEST_F(CudaOnDouble, ReusesStagingMemoryOnlyWhenItsCopiesAreDone) {
  const DevicePtr gpu = device("CUDA").value();
  const QueuePtr queue = gpu->make_queue().value();
  const std::size_t bytes = 60'000;
  // Short and long writes, more than the staging memory holds, with and without a submit among them.
  for (const bool submits : {false, true}) {
    std::vector<Buffer> buffers;
    for (std::size_t i = 0; i < 100; ++i) {
      const std::size_t length = i % 10 == 9 ? 9 * bytes : bytes;
      buffers.push_back(Buffer::allocate(gpu, u8, {length}).value());
      ASSERT_TRUE(queue->write(buffers.back().window().value(), counting_bytes(length, i)));
      if (submits && i % 7 == 0) {
        ASSERT_TRUE(queue->submit());
      }
    }
    ASSERT_TRUE(queue->finish());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      Bytes seen(buffers[i].size());
      ASSERT_TRUE(buffers[i].copyout(seen));
      EXPECT_TRUE(seen == counting_bytes(seen.size(), i)) << i;
    }
  }
}

TEST_F(CudaOnDouble, GivesTheStagingMemoryOfAQueueThatIsGoneToOneOther) {
  const DevicePtr gpu = device("CUDA").value();
  const std::size_t bytes = 10'000;
  const auto write = [&](Queue& queue, std::size_t start) {
    Buffer buffer = Buffer::allocate(gpu, u8, {bytes}).value();
    EXPECT_TRUE(queue.write(buffer.window().value(), counting_bytes(bytes, start)));
    return buffer;
  };
  {
    const QueuePtr first = gpu->make_queue().value();
    write(*first, 1);
    ASSERT_TRUE(first->finish());
  }
  ASSERT_EQ(cuda_double().calls("cuMemHostAlloc"), 1u);
  const QueuePtr second = gpu->make_queue().value(), third = gpu->make_queue().value();
  const Buffer two = write(*second, 2), three = write(*third, 3);
  EXPECT_EQ(cuda_double().calls("cuMemHostAlloc"), 2u) << "one was there, one is new";
  ASSERT_TRUE(second->finish());
  ASSERT_TRUE(third->finish());
  Bytes seen(bytes);
  ASSERT_TRUE(two.copyout(seen));
  EXPECT_TRUE(seen == counting_bytes(bytes, 2));
  ASSERT_TRUE(three.copyout(seen));
  EXPECT_TRUE(seen == counting_bytes(bytes, 3));
}

TEST_F(CudaOnDouble, ReadsThroughTheSameStagingMemoryAgain) {
  const DevicePtr gpu = device("CUDA").value();
  const QueuePtr queue = gpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {200'000}, {.zero = true}).value();
  ASSERT_TRUE(queue->finish());
  const auto before = cuda_double().calls("cuMemHostAlloc");
  Bytes seen(buffer.size());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue->read(buffer.window().value(), seen));
    ASSERT_TRUE(queue->finish());
  }
  EXPECT_EQ(cuda_double().calls("cuMemHostAlloc"), before + 1);
}

TEST_F(CudaDeviceTest, HasNoErrorToReportAfterCallsThatSucceeded) {
  const DevicePtr gpu = device("CUDA").value();
  {
    const QueuePtr queue = gpu->make_queue().value();
    const Buffer buffer = Buffer::allocate(gpu, u8, {64}).value();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
    ASSERT_TRUE(queue->finish());
  }
  gpu->trim();
  const auto error = take_cuda_error(*gpu);
  EXPECT_FALSE(error.has_value()) << error->message();
}

TEST_F(CudaOnDouble, RefusesToImportMemoryOfAnotherGpuOrOfNone) {
  const DevicePtr gpu = device("CUDA:0").value();
  const DevicePtr other = device("CUDA:1").value();
  const Buffer there = Buffer::allocate(other, u8, {64}).value();
  int released = 0;
  const auto count = [&] { ++released; };
  EXPECT_TRUE(
      fails_with(Buffer::import(gpu, {.address = there.native_handle(), .bytes = 64, .release = count}, u8, {64}),
                 Code::kInvalidArgument));
  Bytes host(64);
  EXPECT_TRUE(fails_with(
      Buffer::import(gpu, {.address = reinterpret_cast<std::uint64_t>(host.data()), .bytes = 64, .release = count}, u8,
                     {64}),
      Code::kInvalidArgument));
  EXPECT_EQ(released, 2);
}

TEST_F(CudaOnDouble, WaitsForUnsubmittedWorkBeforeForeignMemoryGoesBack) {
  const DevicePtr gpu = device("CUDA").value();
  const auto& cuda = static_cast<cuda::CudaDevice&>(*gpu);
  const cuda::ContextScope scope(cuda);
  cuda::Address address = 0;
  ASSERT_EQ(cuda.driver().cuMemAlloc(&address, 64), cuda::kSuccess);
  const QueuePtr queue = gpu->make_queue().value();
  {
    const Buffer buffer =
        Buffer::import(gpu,
                       {.address = address,
                        .bytes = 64,
                        .release = [&] { EXPECT_EQ(cuda.driver().cuMemFree(address), cuda::kSuccess); }},
                       u8, {64})
            .value();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
  }  // the double reports a race if the fill was not waited for
}

TEST_F(CudaOnDouble, RecordsErrorsOfFreesOnTheDevice) {
  DevicePtr gpu = device("CUDA").value();
  {
    const Buffer buffer = Buffer::allocate(gpu, u8, {64}).value();
    cuda_double().fail("cuMemFreeAsync", 1, cuda::kErrorInvalidValue, 0);
  }
  const auto error = take_cuda_error(*gpu);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), Code::kDriver);
  EXPECT_NE(error->message().find("cuMemFreeAsync"), std::string::npos);
  EXPECT_FALSE(take_cuda_error(*gpu).has_value()) << "taken once";
  EXPECT_FALSE(take_cuda_error(*device("CPU").value()).has_value());
  gpu.reset();
  EXPECT_EQ(cuda_violations("leak:").size(), 1u) << "what the driver would not take back stays";
  cuda_double().clear_violations();
}

TEST_F(CudaOnDouble, ReportsALostDeviceFromEveryWait) {
  const DevicePtr gpu = device("CUDA").value();
  const QueuePtr queue = gpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {64}, {.zero = true}).value();
  Bytes seen(64, std::byte{5});
  cuda_double().fail_execution(1, cuda::kErrorLaunchFailed);
  ASSERT_TRUE(queue->read(buffer.window().value(), seen));
  const Timepoint moment = queue->submit().value();
  EXPECT_TRUE(fails_with(queue->wait(moment), Code::kDeviceLost));
  EXPECT_FALSE(is_reached(moment)) << "a lost device reaches nothing";
  EXPECT_TRUE(fails_with(buffer.copyin(seen), Code::kDeviceLost));
  EXPECT_EQ(seen, Bytes(64, std::byte{5})) << "no bytes were made up";
  EXPECT_TRUE(cuda_violations().empty());
}

TEST_F(CudaOnDouble, GivesTrimmedMemoryBack) {
  const DevicePtr gpu = device("CUDA").value();
  { const Buffer buffer = Buffer::allocate(gpu, u8, {1 << 20}).value(); }
  EXPECT_EQ(gpu->trim(), 0u) << "the double's pool keeps nothing";
  EXPECT_EQ(cuda_double().calls("cuMemPoolTrimTo"), 1u);
}

TEST_F(CudaDeviceTest, HandsItsStreamToForeignWork) {
  const DevicePtr gpu = device("CUDA").value();
  const auto& cuda = static_cast<cuda::CudaDevice&>(*gpu);
  const Buffer buffer = Buffer::allocate(gpu, u8, {64}).value();
  const QueuePtr queue = gpu->make_queue().value();
  const std::array uses{buffer.window().value()};
  ASSERT_TRUE(queue->record_native(uses, [&](void* stream) -> Result<void> {
    const auto status = cuda.driver().cuMemsetD8Async(buffer.native_handle(), 4, 64, static_cast<cuda::Stream>(stream));
    if (status != cuda::kSuccess) return cuda.driver().error(status, "cuMemsetD8Async");
    return {};
  }));
  Bytes seen(64);
  ASSERT_TRUE(queue->read(buffer.window().value(), seen));
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(seen, Bytes(64, std::byte{4}));
}

// The driver answers neither for the event of a submit nor for the stream. The caller of a read was told of a failure
// and may free its target, so an earlier read that arrives later is not delivered either.
TEST_F(CudaOnDouble, DeliversNoReadAfterTheQueueHasFailed) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {256}, {.zero = true}).value();
  const QueuePtr queue = gpu->make_queue().value();
  Bytes target(256, std::byte{0xee});
  ASSERT_TRUE(queue->read(buffer.window().value(), target));
  const Timepoint read = queue->submit().value();
  ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
  cuda_double().fail("cuEventRecord", 1, cuda::kErrorOutOfMemory, 0);
  cuda_double().fail("cuStreamSynchronize", 1, cuda::kErrorOutOfMemory, 0);
  cuda_double().fail("cuCtxSynchronize", 1, cuda::kErrorOutOfMemory, 0);
  ASSERT_FALSE(queue->submit().has_value());
  ASSERT_EQ(cuda_double().stop_failing(), 0);
  // The double runs the stream when it is asked often enough.
  for (int i = 0; i < 100 && !is_reached(read); ++i) {
  }
  EXPECT_TRUE(is_reached(read));
  EXPECT_EQ(target, Bytes(256, std::byte{0xee}));
}

// Both calls need the context of the device, and try twice to make it current.
TEST_F(CudaOnDouble, SubmitsNothingAndWaitsForNothingWithoutTheContext) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {256}, {.zero = true}).value();
  const auto lose_context = [](int calls) {
    for (int i = 0; i < calls; ++i) cuda_double().fail("cuCtxGetCurrent", 1, cuda::kErrorInvalidValue, 0);
  };
  {
    const QueuePtr queue = gpu->make_queue().value();
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
    lose_context(2);
    const auto refused = queue->submit();
    ASSERT_TRUE(fails_with(refused, Code::kDriver));
    EXPECT_NE(refused.error().message().find("cuCtxGetCurrent"), std::string::npos) << refused.error().message();
    ASSERT_EQ(cuda_double().stop_failing(), 0);
    EXPECT_FALSE(queue->submit().has_value()) << "what was recorded is lost, so the queue stays broken";
  }
  const QueuePtr queue = gpu->make_queue().value();
  ASSERT_TRUE(queue->fill(buffer.window().value(), 2));
  const Timepoint filled = queue->submit().value();
  lose_context(3);  // the first when it is asked whether there is anything to wait for
  const auto refused = queue->wait(filled);
  ASSERT_TRUE(fails_with(refused, Code::kDriver));
  EXPECT_NE(refused.error().message().find("cuCtxGetCurrent"), std::string::npos) << refused.error().message();
  ASSERT_EQ(cuda_double().stop_failing(), 0);
}

TEST_F(CudaDeviceTest, ServesSeveralThreadsWithQueuesOfTheirOwn) {
  if (!cuda_test::on_real_gpu()) cuda_double().set_eager(1);
  const DevicePtr gpu = device("CUDA").value();
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const auto queue = gpu->make_queue();
        if (!queue) {
          ++wrong;
          return;
        }
        for (int i = 0; i < 25; ++i) {
          const auto value = static_cast<std::uint8_t>(t * 40 + i);
          const auto a = Buffer::allocate(gpu, u8, {10'000});
          const auto b = Buffer::allocate(gpu, u8, {10'000}, {.on = (*queue)->timeline()});
          if (!a || !b) {
            ++wrong;
            return;
          }
          Bytes seen(10'000);
          const bool done = (*queue)->fill(a->window().value(), value) &&
                            (*queue)->copy(a->window().value(), b->window().value()) &&
                            (*queue)->read(b->window().value(), seen) && (*queue)->finish();
          if (!done || seen != Bytes(10'000, static_cast<std::byte>(value))) ++wrong;
        }
      });
  }
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace berth
