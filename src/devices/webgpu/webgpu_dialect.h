// The differences between wgpu-native and Dawn; all other files use the standard webgpu.h. The differences are: how the
// host waits, whether a submission has a number, where errors are reported, which feature allows storage buffers to be
// mapped, and what an instance needs. Any thread may call; no state.
#pragma once

#include <cstdint>
#include <string>

#include "devices/webgpu/webgpu_abi.h"

namespace berth::internal::webgpu {

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

// An instance that may use the primary backends of the machine, or null.
wgpu::Instance create_instance(const wgpu::Calls& calls);

// The feature that allows a buffer to be both mapped and bound, or 0 if its number is not stable.
wgpu::Enum mappable_storage_feature(Dialect dialect) noexcept;

}  // namespace berth::internal::webgpu
