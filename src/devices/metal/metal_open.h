// How the registry opens METAL. Free of metal-cpp, so that every compiler reads it: where the device is not built,
// metal_absent.cpp answers.
#pragma once

#include <string>

#include "berth/memory/device.h"

namespace berth::metal {

// DeviceUnavailable with what would make it available.
Result<DevicePtr> open(const std::string& ordinal);

}  // namespace berth::metal
