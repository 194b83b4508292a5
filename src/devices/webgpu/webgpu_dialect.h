// The one place that knows where wgpu-native and Dawn differ. Everything else speaks the standard webgpu.h. The
// differences: how the host waits, whether a submission has a number, where errors are reported, which feature
// lets storage buffers be mapped, and what an instance must be told. Any thread may call; no state.
#pragma once

#include <cstdint>
#include <string>

#include "devices/webgpu/webgpu_abi.h"

namespace berth::webgpu {

enum class Dialect : std::uint8_t {
  kWgpuNative,  // wgpuDevicePoll waits; errors are reported on the calling thread, scopes are shared by all threads
  kStandard,    // wgpuInstanceWaitAny waits on futures; error scopes are per thread (Dawn)
};

Dialect dialect_of(const wgpu::Calls& calls) noexcept;

// Why this library cannot be used ("wgpu-native 22 is older than 29"), or empty. `current_header`: the library
// has a call that came with the header Berth was written for.
std::string dialect_objection(const wgpu::Calls& calls, bool current_header);

// "wgpu-native 29.0.1.1" or "standard".
std::string dialect_version(const wgpu::Calls& calls);

// An instance that may use the machine's first-class backends, or null.
wgpu::Instance create_instance(const wgpu::Calls& calls);

// The feature that lets one buffer be both mapped and bound, or 0 where its number is not settled.
wgpu::Enum mappable_storage_feature(Dialect dialect) noexcept;

}  // namespace berth::webgpu
