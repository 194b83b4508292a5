// Kernels for tests: PTX that a real GPU runs, and what the double runs in its place.
#pragma once

#include <cstdint>
#include <cstring>

#include "berth/memory/device.h"
#include "doubles/cuda/cuda_testing.h"

namespace berth::cuda_test {

// to[i] = from[i] + constant, over u32, one thread an element.
inline constexpr char kAddPtx[] = R"(
.version 6.0
.target sm_52
.address_size 64
.visible .entry berth_add(
    .param .u64 from,
    .param .u64 to,
    .param .u32 constant
)
{
    .reg .b32 %r<7>;
    .reg .b64 %d<7>;
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [to];
    ld.param.u32 %r1, [constant];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %d3, %r5, 4;
    cvta.to.global.u64 %d4, %d1;
    cvta.to.global.u64 %d5, %d2;
    add.u64 %d4, %d4, %d3;
    add.u64 %d5, %d5, %d3;
    ld.global.u32 %r6, [%d4];
    add.u32 %r6, %r6, %r1;
    st.global.u32 [%d5], %r6;
    ret;
}
)";

// Tells the double how to run it. The ranges are those of 256 elements, which every test launches.
inline void register_add_kernel(const char* name = "berth_add") {
  static const auto at = [](const void* const* parameters, int index) {
    unsigned long long pointer = 0;
    std::memcpy(&pointer, parameters[index], sizeof pointer);
    return pointer;
  };
  const CudaDoubleKernel kernel{.name = name,
                                .ranges =
                                    [](const void* const* parameters, CudaDoubleRange* out) {
                                      out[0] = {at(parameters, 0), 1024, 0};
                                      out[1] = {at(parameters, 1), 1024, 1};
                                      return 2;
                                    },
                                .run =
                                    [](const CudaDoubleLaunch* launch) {
                                      std::uint32_t constant = 0;
                                      std::memcpy(&constant, launch->parameters[2], sizeof constant);
                                      const auto* from = static_cast<const std::uint32_t*>(launch->ranges[0]);
                                      auto* to = static_cast<std::uint32_t*>(launch->ranges[1]);
                                      for (unsigned i = 0; i < launch->grid[0] * launch->block[0]; ++i)
                                        to[i] = from[i] + constant;
                                    }};
  register_kernel(kernel);
}

inline Result<Kernel> make_add_kernel(Device& device) {
  register_add_kernel();
  return device.make_kernel({.code = std::as_bytes(std::span(kAddPtx)), .entry = "berth_add"});
}

// The kernel of scale.cu: to[i] = from[i] * factor + offset for i below count.
inline void register_scale_kernel() {
  static const auto value = []<class T>(const void* const* parameters, int index, T like) {
    std::memcpy(&like, parameters[index], sizeof like);
    return like;
  };
  const CudaDoubleKernel kernel{.name = "berth_scale",
                                .ranges =
                                    [](const void* const* parameters, CudaDoubleRange* out) {
                                      const std::size_t bytes = value(parameters, 2, 0u) * sizeof(float);
                                      out[0] = {value(parameters, 0, 0ull), bytes, 0};
                                      out[1] = {value(parameters, 1, 0ull), bytes, 1};
                                      return 2;
                                    },
                                .run =
                                    [](const CudaDoubleLaunch* launch) {
                                      const float factor = value(launch->parameters, 3, 0.0f);
                                      const auto offset = static_cast<float>(value(launch->parameters, 4, 0.0));
                                      const auto* from = static_cast<const float*>(launch->ranges[0]);
                                      auto* to = static_cast<float*>(launch->ranges[1]);
                                      for (unsigned i = 0; i < value(launch->parameters, 2, 0u); ++i)
                                        to[i] = from[i] * factor + offset;
                                    }};
  register_kernel(kernel);
}

}  // namespace berth::cuda_test
