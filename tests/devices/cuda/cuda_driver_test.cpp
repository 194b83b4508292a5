#include "devices/cuda/cuda_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"

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

// A copy of the double under a name of its own, because a driver is read once for each name.
TEST_F(CudaDriver, TakesADriverThatHasAllFunctionsAndRefusesAnOlderOne) {
  constexpr bool kNeeded = true, kOptional = false;
  int newest = 0, newest_needed = 0;
#define BERTH_VERSION_OF(name, symbol, version, need, parameters) \
  newest = std::max(newest, version);                             \
  if (need) newest_needed = std::max(newest_needed, version);
  BERTH_CUDA_FUNCTIONS(BERTH_VERSION_OF)
#undef BERTH_VERSION_OF
  ASSERT_GT(newest_needed, 0);
  const test::TemporaryFolder folder;
  for (const int version : {newest, newest_needed, newest_needed - 10}) {
    const std::string path = (folder.path() / std::to_string(version)).string();
    std::filesystem::copy_file(BERTH_CUDA_DOUBLE, path);
    const auto* const control = static_cast<const CudaDoubleControl*>(
        dlsym(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), "cuda_double_control"));
    const CudaDoubleOptions options{.driver_version = version};
    ASSERT_EQ(control->reset(&options), 1);
    const auto opened = Driver::open(path);
    ASSERT_EQ(opened.has_value(), version >= newest_needed) << version;
    if (!opened) {
      EXPECT_EQ(opened.error().code(), Code::kDeviceUnavailable);
      EXPECT_NE(opened.error().message().find("update the driver"), std::string::npos) << opened.error().message();
      continue;
    }
#define BERTH_HAS(name, symbol, since, need, parameters) \
  EXPECT_EQ((*opened)->name != nullptr, since <= version) << #name << " of a driver of version " << version;
    BERTH_CUDA_FUNCTIONS(BERTH_HAS)
#undef BERTH_HAS
  }
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
