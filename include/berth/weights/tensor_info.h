// One tensor of a weight file, as described by the file header. A plain value; its name and shape are views into the
// open WeightFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "berth/tensor/dtype.h"

namespace berth {

struct TensorInfo {
  std::string_view name;
  std::span<const std::size_t> shape;  // outermost dimension first, as in NumPy, for every format
  std::uint64_t offset = 0;            // of its first byte in the file
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;  // index of the file in a sharded or split set
  DType dtype = DType::kU8;
};

}  // namespace berth
