// WebGPU as a device: buffers of the driver, kernels in WGSL, and queues that share the one queue of the driver. Any
// thread may call.
//
// Kernels: the windows of a launch are @group(0) @binding(0), (1), ... as var<storage, ...>; its constants, if any, are
// the next binding as var<uniform>. Blocks have no host pointer: WebGPU lets the host access memory only while no work
// uses it, so Berth maps inside transfers.
#pragma once

#include "berth/memory/device.h"
#include "devices/webgpu/webgpu_context.h"

namespace berth::internal::webgpu {

// "WEBGPU" or "WEBGPU:1" by the adapter's number. kDeviceUnavailable, with what to install.
Result<DevicePtr> open(const std::string& ordinal);

// The same with a given library: for tests that intercept driver calls.
Result<DevicePtr> open_with(const Library& library, const AdapterChoice& choice);

// Counters for tests and benchmarks.
struct TransferCounters {
  std::uint64_t submissions = 0;     // driver submits of all queues
  std::uint64_t staging_chunks = 0;  // driver buffers made for staging
};
// Requires: `device` is a WEBGPU device.
TransferCounters transfer_counters(const Device& device) noexcept;

}  // namespace berth::internal::webgpu
