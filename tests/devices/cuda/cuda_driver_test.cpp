#include "devices/cuda/cuda_driver.h"

#include <gtest/gtest.h>

#include "doubles/cuda/cuda_testing.h"

namespace berth::internal::cuda {
namespace {

using cuda_test::cuda_double;

class CudaDriver : public cuda_test::CudaDoubleTest {};

TEST_F(CudaDriver, SaysWhatTheLoaderSaidWhenThereIsNoLibrary) {
  const auto opened = Driver::open("/nowhere/libcuda.so.1");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(opened.error().message().find("/nowhere/libcuda.so.1"), std::string::npos) << opened.error().message();
  EXPECT_NE(opened.error().message().find("BERTH_CUDA_LIBRARY"), std::string::npos);
}

TEST_F(CudaDriver, RefusesALibraryThatIsNoCudaDriver) {
  const auto opened = Driver::open("libm.so.6");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(opened.error().message().find("cuDriverGetVersion"), std::string::npos);
}

TEST_F(CudaDriver, RepeatsTheDriversWordsWhenItHasNoDevice) {
  const CudaDoubleOptions none{.devices = 0};
  ASSERT_EQ(cuda_double().reset(&none), 1);
  const auto opened = Driver::open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(opened.error().message().find("no CUDA-capable device is detected"), std::string::npos);
}

TEST_F(CudaDriver, MapsTheDriversCodesToOurs) {
  const Driver* driver = Driver::open().value();
  EXPECT_EQ(driver->error(kErrorOutOfMemory, "cuMemAlloc").code(), Code::kOutOfMemory);
  EXPECT_EQ(driver->error(kErrorIllegalAddress, "cuMemAlloc").code(), Code::kDeviceLost);
  EXPECT_EQ(driver->error(kErrorNotSupported, "cuMemAlloc").code(), Code::kUnsupported);
  const Error invalid = driver->error(kErrorInvalidValue, "cuMemAlloc");
  EXPECT_EQ(invalid.code(), Code::kDriver);
  EXPECT_EQ(invalid.message(), "cuMemAlloc says CUDA_ERROR_INVALID_VALUE (invalid argument)");
  EXPECT_EQ(driver->words(static_cast<Status>(12345)), "CUDA error 12345");
}

}  // namespace
}  // namespace berth::internal::cuda
