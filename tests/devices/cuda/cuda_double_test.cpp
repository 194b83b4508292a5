// The driver double keeps its promises: late, strict, and never in doubt about a race.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "devices/cuda/double_streams.h"

namespace berth::internal::cuda {
namespace {

using cuda_test::cuda_double;
using cuda_test::cuda_violations;

class CudaDouble : public DoubleStreams {
 protected:
  void make() override {
    ASSERT_EQ(driver_->cuEventCreate(&event_, kEventDisableTiming), kSuccess);
    const PoolProperties properties{.type = kAllocationPinned,
                                    .handle_types = kHandleNone,
                                    .location = {kLocationDevice, 0},
                                    .win32_attributes = nullptr,
                                    .max_size = 0,
                                    .usage = 0,
                                    .reserved = {}};
    ASSERT_EQ(driver_->cuMemPoolCreate(&pool_, &properties), kSuccess);
  }
  void destroy() override {
    EXPECT_EQ(driver_->cuMemPoolDestroy(pool_), kSuccess);
    EXPECT_EQ(driver_->cuEventDestroy(event_), kSuccess);
  }

  Address plain() {
    Address pointer = 0;
    EXPECT_EQ(driver_->cuMemAlloc(&pointer, kBytes), kSuccess);
    return pointer;
  }
  Address pooled(Stream stream) {
    Address pointer = 0;
    EXPECT_EQ(driver_->cuMemAllocFromPoolAsync(&pointer, kBytes, pool_, stream), kSuccess);
    return pointer;
  }

  Event event_ = nullptr;
  MemoryPool pool_ = nullptr;
};

TEST_F(CudaDouble, RunsNothingBeforeSomebodyWaits) {
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 7, kBytes, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host(), memory, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(host()[0], 0xDB);
  EXPECT_EQ(driver_->cuStreamSynchronize(streams_[0]), kSuccess);
  EXPECT_EQ(host()[0], 7);
  EXPECT_EQ(host()[kBytes - 1], 7);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, ReadsPinnedMemoryLateSoThatAnEarlyOverwriteShows) {
  const Address memory = plain();
  std::memset(host(), 1, kBytes);
  ASSERT_EQ(driver_->cuMemcpyHtoDAsync(memory, host(), kBytes, streams_[0]), kSuccess);
  std::memset(host(), 2, kBytes);
  std::array<unsigned char, kBytes> seen{};
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(seen.data(), memory, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(seen[0], 2);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, CopiesPageableMemoryAtTheCall) {
  const Address memory = plain();
  std::array<unsigned char, kBytes> bytes{};
  bytes.fill(1);
  ASSERT_EQ(driver_->cuMemcpyHtoDAsync(memory, bytes.data(), kBytes, streams_[0]), kSuccess);
  bytes.fill(2);
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(bytes.data(), memory, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, HandsOutFreshMemoryFullOfPoison) {
  const Address memory = plain();
  std::array<unsigned char, kBytes> seen{};
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(seen.data(), memory, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(seen[100], 0xCD);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, FaultsWhenTheHostTouchesDeviceMemory) {
  const Address memory = plain();
  EXPECT_DEATH({ *reinterpret_cast<volatile char*>(memory) = 1; }, "");
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, ReportsARaceBetweenStreamsAndSpoilsTheData) {
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host(), memory, kBytes, streams_[1]), kSuccess);
  forgive("race:");
  ASSERT_EQ(driver_->cuCtxSynchronize(), kSuccess);
  EXPECT_EQ(host()[0], 0xDB);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, AcceptsTwoStreamsThatAnEventOrders) {
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 9, kBytes, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuEventRecord(event_, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuStreamWaitEvent(streams_[1], event_, 0), kSuccess);
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host(), memory, kBytes, streams_[1]), kSuccess);
  ASSERT_EQ(driver_->cuStreamSynchronize(streams_[1]), kSuccess);
  EXPECT_EQ(host()[0], 9);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, AcceptsTwoStreamsInDisjointHalvesOfOneAllocation) {
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes / 2, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuMemsetD8Async(memory + kBytes / 2, 2, kBytes / 2, streams_[1]), kSuccess);
  ASSERT_EQ(driver_->cuCtxSynchronize(), kSuccess);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, ReportsAPlainFreeBeforeTheLastUseIsWaitedFor) {
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
  forgive("race:");
  // The late fill meets memory that is gone, and takes the context with it.
  EXPECT_EQ(driver_->cuStreamSynchronize(streams_[0]), kErrorIllegalAddress);
  EXPECT_EQ(driver_->cuStreamSynchronize(streams_[1]), kErrorIllegalAddress);
  // Nothing can be freed in a lost context; a new one takes its place.
  EXPECT_EQ(driver_->cuCtxSetCurrent(nullptr), kSuccess);
  EXPECT_EQ(driver_->cuDevicePrimaryCtxRelease(0), kSuccess);
  SetUp();
}

TEST_F(CudaDouble, ReportsAStreamOrderedFreeThatDoesNotComeAfterAUseOnAnotherStream) {
  const Address memory = pooled(streams_[0]);
  ASSERT_EQ(driver_->cuEventRecord(event_, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuStreamWaitEvent(streams_[1], event_, 0), kSuccess);
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[1]), kSuccess);
  EXPECT_EQ(driver_->cuMemFreeAsync(memory, streams_[0]), kSuccess);
  forgive("race:");
  ASSERT_EQ(driver_->cuStreamSynchronize(streams_[1]), kSuccess);
}

TEST_F(CudaDouble, ReportsAUseOfPooledMemoryThatIsNotOrderedAfterItsAllocation) {
  const Address memory = pooled(streams_[0]);
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[1]), kSuccess);
  forgive("race:");
  ASSERT_EQ(driver_->cuCtxSynchronize(), kSuccess);
  EXPECT_EQ(driver_->cuMemFreeAsync(memory, streams_[1]), kSuccess);
}

TEST_F(CudaDouble, RefusesEveryUseOfMemoryAfterItsFree) {
  const Address memory = pooled(streams_[0]);
  EXPECT_EQ(driver_->cuMemFreeAsync(memory, streams_[0]), kSuccess);
  EXPECT_EQ(driver_->cuMemFreeAsync(memory, streams_[0]), kErrorInvalidValue);
  forgive("misuse:");
  EXPECT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[0]), kErrorInvalidValue);
  forgive("misuse:");
  const Address other = plain();
  EXPECT_EQ(driver_->cuMemFree(other), kSuccess);
  EXPECT_EQ(driver_->cuMemFree(other), kErrorInvalidValue);
  forgive("misuse:");
}

TEST_F(CudaDouble, RefusesRangesOutsideAnAllocation) {
  const Address memory = plain();
  const Address neighbour = plain();
  EXPECT_EQ(driver_->cuMemsetD8Async(memory + 1, 0, kBytes, streams_[0]), kErrorInvalidValue);
  forgive("misuse:");
  EXPECT_EQ(driver_->cuMemcpyDtoDAsync(memory, neighbour, kBytes + 1, streams_[0]), kErrorInvalidValue);
  forgive("misuse:");
  EXPECT_EQ(driver_->cuMemcpyDtoDAsync(memory, memory + 16, 64, streams_[0]), kErrorInvalidValue);
  forgive("misuse:");
  EXPECT_EQ(driver_->cuMemsetD32Async(memory + 2, 0, 1, streams_[0]), kErrorInvalidValue);
  forgive("misuse:");
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
  EXPECT_EQ(driver_->cuMemFree(neighbour), kSuccess);
}

TEST_F(CudaDouble, RefusesUnknownHandlesAndForeignContexts) {
  const auto nonsense = reinterpret_cast<Stream>(std::uintptr_t{0x4242});
  EXPECT_EQ(driver_->cuStreamSynchronize(nonsense), kErrorInvalidHandle);
  forgive("misuse:");
  Context other = nullptr;
  ASSERT_EQ(driver_->cuDevicePrimaryCtxRetain(&other, 1), kSuccess);
  ASSERT_EQ(driver_->cuCtxPushCurrent(other), kSuccess);
  EXPECT_EQ(driver_->cuStreamSynchronize(streams_[0]), kErrorInvalidHandle);
  forgive("misuse:");
  ASSERT_EQ(driver_->cuCtxPopCurrent(nullptr), kSuccess);
  ASSERT_EQ(driver_->cuDevicePrimaryCtxRelease(1), kSuccess);
  std::thread([&] { EXPECT_EQ(driver_->cuCtxSynchronize(), kErrorInvalidContext); }).join();
  forgive("misuse:");
}

TEST_F(CudaDouble, FailsTheNthCallOfANameAndOfAnyName) {
  cuda_double().fail("cuMemAlloc", 2, kErrorOutOfMemory, 0);
  const Address first = plain();
  Address second = 0;
  EXPECT_EQ(driver_->cuMemAlloc(&second, kBytes), kErrorOutOfMemory);
  EXPECT_EQ(cuda_double().stop_failing(), 0);
  cuda_double().fail(nullptr, 1, kErrorInvalidValue, 0);
  EXPECT_EQ(driver_->cuMemFree(first), kErrorInvalidValue);
  EXPECT_EQ(driver_->cuMemFree(first), kSuccess);
  cuda_double().fail(nullptr, 100, kErrorInvalidValue, 0);
  EXPECT_EQ(cuda_double().stop_failing(), 1);
}

TEST_F(CudaDouble, CountsCallsByNameAndBytesByDirection) {
  cuda_double().clear_calls();
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemcpyHtoDAsync(memory, host(), 100, streams_[0]), kSuccess);
  EXPECT_EQ(cuda_double().calls("cuMemAlloc"), 1u);
  EXPECT_EQ(cuda_double().calls("cuMemFree"), 0u);
  EXPECT_EQ(cuda_double().calls(nullptr), 2u);
  EXPECT_EQ(cuda_double().traffic().host_to_device, 100u);
  ASSERT_EQ(driver_->cuStreamSynchronize(streams_[0]), kSuccess);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, RunsOutOfMemoryAtItsSize) {
  Address pointer = 0;
  EXPECT_EQ(driver_->cuMemAlloc(&pointer, (std::size_t{1} << 30) + 1), kErrorOutOfMemory);
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(driver_->cuMemGetInfo(&free, &total), kSuccess);
  EXPECT_EQ(free, total);
}

TEST_F(CudaDouble, KeepsContentsOfMappedMemoryByHandleAndForgetsThemWithIt) {
  const AllocationProperties properties{.type = kAllocationPinned,
                                        .requested_handle_types = kHandleNone,
                                        .location = {kLocationDevice, 0},
                                        .win32_metadata = nullptr,
                                        .flags = {}};
  std::size_t granularity = 0;
  ASSERT_EQ(driver_->cuMemGetAllocationGranularity(&granularity, &properties, kGranularityMinimum), kSuccess);
  Address address = 0;
  ASSERT_EQ(driver_->cuMemAddressReserve(&address, 2 * granularity, 0, 0, 0), kSuccess);
  MemoryHandle handle = 0;
  ASSERT_EQ(driver_->cuMemCreate(&handle, granularity, &properties, 0), kSuccess);
  ASSERT_EQ(driver_->cuMemMap(address, granularity, 0, handle, 0), kSuccess);
  EXPECT_EQ(driver_->cuMemsetD8Async(address, 1, 16, streams_[0]), kErrorInvalidValue) << "no access was set";
  forgive("misuse:");
  const AccessDescription access{{kLocationDevice, 0}, kAccessReadWrite};
  ASSERT_EQ(driver_->cuMemSetAccess(address, granularity, &access, 1), kSuccess);
  ASSERT_EQ(driver_->cuMemsetD8Async(address, 5, 16, streams_[0]), kSuccess);
  EXPECT_EQ(driver_->cuMemAddressFree(address, 2 * granularity), kErrorInvalidValue);
  forgive("misuse:");
  ASSERT_EQ(driver_->cuStreamSynchronize(streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuMemUnmap(address, granularity), kSuccess);
  ASSERT_EQ(driver_->cuMemMap(address + granularity, granularity, 0, handle, 0), kSuccess);
  ASSERT_EQ(driver_->cuMemSetAccess(address + granularity, granularity, &access, 1), kSuccess);
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host(), address + granularity, 16, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuStreamSynchronize(streams_[0]), kSuccess);
  EXPECT_EQ(host()[15], 5);
  ASSERT_EQ(driver_->cuMemRelease(handle), kSuccess);
  EXPECT_EQ(cuda_double().live_bytes(0), granularity) << "mapped memory lives on without its handle";
  ASSERT_EQ(driver_->cuMemUnmap(address + granularity, granularity), kSuccess);
  EXPECT_EQ(cuda_double().live_bytes(0), 0u);
  EXPECT_EQ(driver_->cuMemAddressFree(address, 2 * granularity), kSuccess);
}

TEST_F(CudaDouble, TellsAnEventsEndOnlyToOneWhoAsksAgain) {
  const Address memory = plain();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuEventRecord(event_, streams_[0]), kSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(driver_->cuEventQuery(event_), kErrorNotReady);
  EXPECT_EQ(driver_->cuEventQuery(event_), kSuccess);
  EXPECT_EQ(driver_->cuMemFree(memory), kSuccess);
}

TEST_F(CudaDouble, LosesTheContextWhenAnExecutionFails) {
  const Address memory = plain();
  cuda_double().fail_execution(1, kErrorLaunchFailed);
  ASSERT_EQ(driver_->cuMemsetD8Async(memory, 1, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(driver_->cuStreamSynchronize(streams_[0]), kErrorLaunchFailed);
  EXPECT_EQ(driver_->cuMemFree(memory), kErrorLaunchFailed);
  EXPECT_EQ(driver_->cuCtxSetCurrent(nullptr), kSuccess);
  EXPECT_EQ(driver_->cuDevicePrimaryCtxRelease(0), kSuccess);
  SetUp();
}

TEST_F(CudaDouble, CallsItALeakWhenAContextEndsWithMemoryAlive) {
  Context other = nullptr;
  ASSERT_EQ(driver_->cuDevicePrimaryCtxRetain(&other, 1), kSuccess);
  ASSERT_EQ(driver_->cuCtxPushCurrent(other), kSuccess);
  static_cast<void>(plain());
  ASSERT_EQ(driver_->cuCtxPopCurrent(nullptr), kSuccess);
  ASSERT_EQ(driver_->cuDevicePrimaryCtxRelease(1), kSuccess);
  forgive("leak:");
}

TEST_F(CudaDouble, GivesAFunctionInTheFormOfTheVersionAskedFor) {
  // An older form under the same name must not be taken for the newer one.
  Context current = nullptr;
  EXPECT_EQ(driver_->cuCtxGetCurrent(&current), kSuccess);
  EXPECT_EQ(current, context_);
  EXPECT_EQ(driver_->cuCtxSynchronize(), kSuccess);
}

}  // namespace
}  // namespace berth::internal::cuda
