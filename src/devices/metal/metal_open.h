// How the registry opens METAL. Free of metal-cpp, so that every compiler reads it: where the device is not built,
// metal_absent.cpp answers.
#pragma once

#include <string>

#include "berth/memory/device.h"

namespace berth::internal::metal {

// For messages of builds without the device.
#ifdef __APPLE__
inline constexpr const char* kHowToGetMetal =
    "this build has no METAL device: configure with -DBERTH_METAL=ON and -DBERTH_METAL_CPP_DIR=<folder of metal-cpp>";
#else
inline constexpr const char* kHowToGetMetal =
    "METAL is Apple's, and this system is not: build Berth on macOS with metal-cpp";
#endif

// kDeviceUnavailable with what would make it available.
Result<DevicePtr> open(const std::string& ordinal);

}  // namespace berth::internal::metal
