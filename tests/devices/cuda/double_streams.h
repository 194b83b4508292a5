// What tests of the driver double itself start with: the driver's functions, a current context, streams, and pinned
// memory to read results from.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "devices/cuda/cuda_driver.h"
#include "doubles/cuda/cuda_testing.h"

namespace berth::internal::cuda {

class DoubleStreams : public cuda_test::CudaDoubleTest {
 protected:
  static constexpr std::size_t kBytes = 4096;

  void SetUp() override {
    CudaDoubleTest::SetUp();
    if (IsSkipped()) return;
    driver_ = Driver::open().value();
    ASSERT_EQ(driver_->cuDevicePrimaryCtxRetain(&context_, 0), kSuccess);
    ASSERT_EQ(driver_->cuCtxSetCurrent(context_), kSuccess);
    for (Stream& stream : streams_) ASSERT_EQ(driver_->cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
    ASSERT_EQ(driver_->cuMemHostAlloc(&pinned_, kBytes, 0), kSuccess);
    make();
  }

  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(driver_->cuCtxSynchronize(), kSuccess);
    destroy();
    EXPECT_EQ(driver_->cuMemFreeHost(pinned_), kSuccess);
    for (Stream stream : streams_) EXPECT_EQ(driver_->cuStreamDestroy(stream), kSuccess);
    EXPECT_EQ(driver_->cuCtxSetCurrent(nullptr), kSuccess);
    EXPECT_EQ(driver_->cuDevicePrimaryCtxRelease(0), kSuccess);
    CudaDoubleTest::TearDown();
  }

  // What one suite needs besides, and its end.
  virtual void make() = 0;
  virtual void destroy() = 0;

  // There is one violation and it is of this kind; it is then forgiven.
  void forgive(std::string_view kind) {
    EXPECT_EQ(cuda_test::cuda_violations(kind).size(), 1u);
    EXPECT_EQ(cuda_test::cuda_violations().size(), 1u);
    cuda_test::cuda_double().clear_violations();
  }
  unsigned char* host() { return static_cast<unsigned char*>(pinned_); }

  const Driver* driver_ = nullptr;
  Context context_ = nullptr;
  std::array<Stream, 3> streams_{};
  void* pinned_ = nullptr;
};

}  // namespace berth::internal::cuda
