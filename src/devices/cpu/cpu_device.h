// Host memory as a device: every block has a host pointer, queues execute operations as they are recorded, and kernels
// are host callables. Any thread may call.
#pragma once

#include <string>

#include "berth/memory/device.h"

namespace berth::internal::cpu {

// The host device, "CPU" or "CPU:0". kDeviceUnavailable for another ordinal.
Result<DevicePtr> open(const std::string& ordinal = "0");

}  // namespace berth::internal::cpu
