// The kernel that the METAL tests launch, as Metal source: on the double, a function of the host with the same name
// stands for it.
#pragma once

#include <span>
#include <string_view>

#include "berth/berth.h"

namespace berth::metal_test {

inline constexpr std::string_view kAddSource = R"(
#include <metal_stdlib>
kernel void add_constant(device const uint* from [[buffer(0)]], device uint* to [[buffer(1)]],
                         constant uint& constant_ [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  to[i] = from[i] + constant_;
}
)";

// The same compiled, as far as the double reads it: what tells a metallib, and a record with the name.
inline constexpr std::string_view kAddLibrary{"MTLB....NAME\x0d\0add_constant\0ENDT", 31};

inline Result<Kernel> make_add_kernel(Device& device) {
  return device.make_kernel({.code = std::as_bytes(std::span(kAddSource)), .entry = "add_constant"});
}

}  // namespace berth::metal_test
