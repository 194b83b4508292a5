#include "devices/webgpu/webgpu_dialect.h"

#include <fmt/format.h>

namespace berth::internal::webgpu {
namespace {

constexpr std::uint32_t kOldestNative = 29;  // its header is the one webgpu_abi.h was checked against

}  // namespace

Dialect dialect_of(const wgpu::Calls& calls) noexcept {
  return calls.DevicePoll != nullptr && calls.QueueSubmitForIndex != nullptr ? Dialect::kWgpuNative
                                                                             : Dialect::kStandard;
}

std::string dialect_objection(const wgpu::Calls& calls, bool current_header) {
  if (dialect_of(calls) == Dialect::kWgpuNative && calls.GetVersion != nullptr) {
    const std::uint32_t major = calls.GetVersion() >> 24;
    if (major < kOldestNative) {
      return fmt::format("wgpu-native {} is older than {}, whose webgpu.h Berth uses", major, kOldestNative);
    }
  }
  if (!current_header) return "the library has an older webgpu.h than the one Berth was written for";
  return {};
}

std::string dialect_version(const wgpu::Calls& calls) {
  if (dialect_of(calls) == Dialect::kStandard || calls.GetVersion == nullptr) return "standard webgpu.h";
  const std::uint32_t v = calls.GetVersion();
  return fmt::format("wgpu-native {}.{}.{}.{}", v >> 24, (v >> 16) & 0xFF, (v >> 8) & 0xFF, v & 0xFF);
}

wgpu::Instance create_instance(const wgpu::Calls& calls) {
  if (dialect_of(calls) == Dialect::kWgpuNative) {
    // Without this the library also starts OpenGL, which prints to stderr without a display and has only small storage
    // buffers.
    wgpu::NativeInstanceExtras extras{};
    extras.chain.type = wgpu::kTypeNativeInstanceExtras;
    extras.backends = wgpu::kNativeVulkan | wgpu::kNativeMetal | wgpu::kNativeD3D12;
    wgpu::InstanceDescriptor descriptor{};
    descriptor.next = &extras.chain;
    return calls.CreateInstance(&descriptor);
  }
  const wgpu::Enum waits = wgpu::kInstanceFeatureTimedWaitAny;
  wgpu::InstanceDescriptor descriptor{};
  descriptor.required_feature_count = 1;
  descriptor.required_features = &waits;
  return calls.CreateInstance(&descriptor);
}

wgpu::Enum mappable_storage_feature(Dialect dialect) noexcept {
  // Dawn has the same feature under a number that changed between its releases, so it is not requested.
  return dialect == Dialect::kWgpuNative ? wgpu::kNativeMappablePrimaryBuffers : 0;
}

}  // namespace berth::internal::webgpu
