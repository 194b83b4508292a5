// The implementations of array conversion between f32 and f16 that this build can use on this machine, best first.
// to_f16 and to_f32 use the first; tests and benchmarks use all.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "berth/tensor/dtype.h"

namespace berth::internal {

struct F16Path {
  std::string_view name;
  void (*narrow)(const float*, F16*, std::size_t) noexcept;
  void (*widen)(const F16*, float*, std::size_t) noexcept;
};

std::span<const F16Path> f16_paths() noexcept;

}  // namespace berth::internal
