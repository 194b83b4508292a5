// The kernel and the foreign memory of a DeviceCase whose device computes on the host.
#pragma once

#include <cstring>
#include <vector>

#include "conformance/device_conformance.h"

namespace berth::conformance {

inline Result<Kernel> host_add_kernel(Device& device) {
  return device.make_kernel({.host = [](const HostCall& call) {
    std::uint32_t constant = 0;
    std::memcpy(&constant, call.constants.data(), sizeof constant);
    const auto* from = reinterpret_cast<const std::uint32_t*>(call.windows[0].data());
    auto* to = reinterpret_cast<std::uint32_t*>(call.windows[1].data());
    for (std::uint32_t i = 0; i < call.grid.groups[0] * call.grid.threads[0]; ++i) to[i] = from[i] + constant;
  }});
}

inline Result<ForeignMemory> host_foreign(Device&, std::span<const std::byte> contents) {
  auto* bytes = new std::vector<std::byte>(contents.begin(), contents.end());
  return ForeignMemory{.address = reinterpret_cast<std::uint64_t>(bytes->data()),
                       .bytes = bytes->size(),
                       .read_only = false,
                       .release = [bytes] { delete bytes; }};
}

}  // namespace berth::conformance
