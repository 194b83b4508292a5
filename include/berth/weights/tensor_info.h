// One tensor of a weight file, as the file's header describes it. A plain value whose name and shape are
// views into the open WeightFile that gave it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "berth/tensor/dtype.h"

namespace berth {

struct TensorInfo {
  std::string_view name;
  std::span<const std::size_t> shape;  // outermost dimension first, as NumPy has it, for every format
  std::uint64_t offset = 0;            // of its first byte in its file
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;  // which file, for a sharded or split set
  DType dtype = DType::kU8;
};

}  // namespace berth
