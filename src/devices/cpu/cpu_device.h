// Host memory as a device: every block has a host pointer, queues do their work when it is recorded, and
// kernels are host callables.
#pragma once

#include "berth/memory/device.h"

namespace berth::cpu {

Result<DevicePtr> open();

}  // namespace berth::cpu
