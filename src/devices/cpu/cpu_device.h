// Host memory as a device: every block has a host pointer, queues do their work when it is recorded, and
// kernels are host callables.
#pragma once

#include <string>

#include "berth/memory/device.h"

namespace berth::cpu {

// The one host device, "CPU" or "CPU:0". kDeviceUnavailable for another ordinal.
Result<DevicePtr> open(const std::string& ordinal = "0");

}  // namespace berth::cpu
