// The context of a GPU and of the calling thread: found, set and left as it was.
#include <gtest/gtest.h>

#include <thread>

#include "berth/berth.h"
#include "devices/cuda/cuda_device.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"

namespace berth {
namespace {

using namespace cuda_test;
using namespace internal;
using namespace test;
using Bytes = std::vector<std::byte>;

class CudaContext : public cuda_test::CudaDoubleTest {};

TEST_F(CudaContext, ReleasesItsContextWithTheLastUser) {
  DevicePtr gpu = device("CUDA").value();
  Buffer buffer = Buffer::allocate(gpu, f32, {16}).value();
  gpu.reset();
  EXPECT_GT(cuda_double().live_objects(), 0u) << "the buffer keeps the context";
  buffer = Buffer();
  EXPECT_EQ(cuda_double().live_objects(), 0u);
}

TEST_F(CudaContext, LeavesTheThreadsContextAsItWas) {
  const DevicePtr gpu = device("CUDA:1").value();
  const cuda::Driver* const driver = cuda::Driver::open().value();
  cuda::Context before = nullptr;
  ASSERT_EQ(driver->cuDevicePrimaryCtxRetain(&before, 0), cuda::kSuccess);
  ASSERT_EQ(driver->cuCtxPushCurrent(before), cuda::kSuccess);
  {
    const Buffer buffer = Buffer::allocate(gpu, u8, {64}).value();
    ASSERT_TRUE(buffer.copyin(Bytes(64)));
    cuda::Context now = nullptr;
    ASSERT_EQ(driver->cuCtxGetCurrent(&now), cuda::kSuccess);
    EXPECT_EQ(now, before);
    {
      const CudaScope scope = CudaScope::enter(gpu).value();
      ASSERT_EQ(driver->cuCtxGetCurrent(&now), cuda::kSuccess);
      EXPECT_EQ(now, gpu->native());
      cuda_double().clear_calls();
      ASSERT_TRUE(buffer.copyin(Bytes(64)));
      EXPECT_EQ(cuda_double().calls("cuCtxPushCurrent"), 0u);
    }
    ASSERT_EQ(driver->cuCtxGetCurrent(&now), cuda::kSuccess);
    EXPECT_EQ(now, before);
  }
  ASSERT_EQ(driver->cuCtxPopCurrent(nullptr), cuda::kSuccess);
  ASSERT_EQ(driver->cuDevicePrimaryCtxRelease(0), cuda::kSuccess);
  EXPECT_TRUE(fails_with(CudaScope::enter(device("CPU").value()), Code::kInvalidArgument));
}

TEST_F(CudaContext, KeepsTheFirstGpusContextOnAThreadThatHadNoneUntilTheDeviceGoes) {
  const cuda::Driver* const driver = cuda::Driver::open().value();
  const auto current = [&] {
    cuda::Context now = nullptr;
    EXPECT_EQ(driver->cuCtxGetCurrent(&now), cuda::kSuccess);
    return static_cast<void*>(now);
  };
  ASSERT_EQ(current(), nullptr);
  {
    const DevicePtr second = device("CUDA:1").value();
    EXPECT_EQ(current(), nullptr) << "the runtime would choose CUDA:0 here, so nothing else may stay";
    const DevicePtr first = device("CUDA:0").value();
    EXPECT_EQ(current(), first->native());
    ASSERT_TRUE(Buffer::allocate(second, u8, {64}).value().copyin(Bytes(64)));
    EXPECT_EQ(current(), first->native());
    std::jthread([&] {
      EXPECT_EQ(current(), nullptr) << "each thread has its own";
      EXPECT_TRUE(Buffer::allocate(first, u8, {64}).value().copyin(Bytes(64)));
      EXPECT_EQ(current(), first->native());
    }).join();
  }
  EXPECT_EQ(current(), nullptr);
}

TEST_F(CudaContext, LeavesTheFirstGpusContextToAThreadThatSetItItself) {
  const cuda::Driver* const driver = cuda::Driver::open().value();
  cuda::Context theirs = nullptr;
  ASSERT_EQ(driver->cuDevicePrimaryCtxRetain(&theirs, 0), cuda::kSuccess);
  std::jthread([&] {
    ASSERT_EQ(driver->cuCtxSetCurrent(theirs), cuda::kSuccess);
    {
      const DevicePtr gpu = device("CUDA:0").value();
      ASSERT_EQ(gpu->native(), theirs);
      const Buffer buffer = Buffer::allocate(gpu, u8, {64}).value();
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(buffer.copyin(Bytes(64)));
    }
    cuda::Context now = nullptr;
    EXPECT_EQ(driver->cuCtxGetCurrent(&now), cuda::kSuccess);
    EXPECT_EQ(now, theirs) << "the device is gone, and did not set it";
    EXPECT_EQ(driver->cuCtxSetCurrent(nullptr), cuda::kSuccess);
  }).join();
  ASSERT_EQ(driver->cuDevicePrimaryCtxRelease(0), cuda::kSuccess);
}

TEST_F(CudaContext, FindsItsContextAgainWhenSomebodyElseChangedTheThreads) {
  const DevicePtr gpu = device("CUDA:0").value();
  const DevicePtr other = device("CUDA:1").value();
  const cuda::Driver& driver = static_cast<cuda::CudaDevice&>(*gpu).driver();
  Queue* const queue = gpu->default_queue().value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {64}, {.on = queue->timeline()}).value();
  ASSERT_TRUE(buffer.copyin(Bytes(64)));
  const auto theirs = static_cast<cuda::Context>(other->native());
  for (const cuda::Context context : {theirs, cuda::Context{nullptr}}) {
    ASSERT_EQ(driver.cuCtxSetCurrent(context), cuda::kSuccess);
    // The first call goes by memory, is turned down, and is made again.
    const Buffer fresh = Buffer::allocate(gpu, u8, {64}, {.zero = true, .on = queue->timeline()}).value();
    ASSERT_TRUE(queue->write(fresh.window().value(), counting_bytes(64)));
    cuda::Context now = nullptr;
    ASSERT_EQ(driver.cuCtxGetCurrent(&now), cuda::kSuccess);
    if (context == theirs) {
      EXPECT_EQ(now, theirs) << "and what they chose stays";
    }
    Bytes seen(64);
    ASSERT_TRUE(fresh.copyout(seen));
    EXPECT_EQ(seen, counting_bytes(64));
  }
  EXPECT_EQ(cuda_violations("misuse:").size(), 1u) << "from then on the driver is asked first";
  cuda_double().clear_violations();
  ASSERT_EQ(driver.cuCtxSetCurrent(nullptr), cuda::kSuccess);
}

}  // namespace
}  // namespace berth
