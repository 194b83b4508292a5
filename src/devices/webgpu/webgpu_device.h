// WebGPU as a device: buffers of the driver's, kernels in WGSL, and queues that share the driver's one queue.
//
// Kernels: a launch's windows are @group(0) @binding(0), (1), ... as var<storage, ...>; its constants, if any, are
// the binding after them as var<uniform>. Blocks have no host pointer: WebGPU lets the host see memory only while
// no work uses it, so Berth maps inside transfers.
#pragma once

#include "berth/memory/device.h"
#include "devices/webgpu/webgpu_context.h"

namespace berth::webgpu {

// "WEBGPU" or "WEBGPU:1" by the adapter's number. kDeviceUnavailable, with what to install.
Result<DevicePtr> open(const std::string& ordinal);

// The same over a given library: for tests that stand between Berth and the driver.
Result<DevicePtr> open_with(const Library& library, const AdapterChoice& choice);

// What a test or bench may want to know.
struct TransferCounters {
  std::uint64_t submissions = 0;     // driver submits of all queues
  std::uint64_t staging_chunks = 0;  // driver buffers made for staging
};
// Requires: `device` is a WEBGPU device.
TransferCounters transfer_counters(const Device& device) noexcept;

}  // namespace berth::webgpu
