// METAL in a build without it: every call fails with what would make it available.
#include <fmt/format.h>

#include "devices/metal/metal_open.h"

namespace berth::internal::metal {

Result<DevicePtr> open(const std::string& ordinal) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                          fmt::format("METAL:{} is not available: {}", ordinal, kHowToGetMetal));
}

}  // namespace berth::internal::metal
