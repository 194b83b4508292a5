// METAL in a build without it: every call says what would bring it.
#include <fmt/format.h>

#include "berth/interop/metal.h"
#include "devices/metal/metal_open.h"

namespace berth {
namespace {

#ifdef __APPLE__
constexpr const char* kRemedy =
    "this build has no METAL device: configure with -DBERTH_METAL=ON and -DBERTH_METAL_CPP_DIR=<folder of metal-cpp>";
#else
constexpr const char* kRemedy = "METAL is Apple's, and this system is not: build Berth on macOS with metal-cpp";
#endif

}  // namespace

Result<DevicePtr> metal::open(const std::string& ordinal) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                          fmt::format("METAL:{} is not available: {}", ordinal, kRemedy));
}

Result<MetalInfo> metal_info(Device&) {
  return Error::with_text(Code::kInvalidArgument, Layer::kDevice, kRemedy);
}

Result<Buffer> metal_wrap(DevicePtr, const Buffer&) {
  return Error::with_text(Code::kInvalidArgument, Layer::kBuffer, kRemedy);
}

}  // namespace berth
