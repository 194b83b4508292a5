// Reads tensors, or slices of them, into buffers of any device. Requests become pieces of a few MiB; neighbours in
// the file become one system call that scatters into their places; a handful of threads work them off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "berth/weights/weights.h"
#include "weights/byte_source.h"

namespace berth::formats {

// `rows` runs of `row_bytes` bytes, each `row_pitch` after the one before, make one dense tensor.
struct LoadRequest {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t row_pitch = 0;
  std::uint64_t rows = 1;
  DType dtype = DType::kU8;
  Shape shape{};

  std::uint64_t bytes() const noexcept { return row_bytes * rows; }
};

// InvalidArgument for more than kMaxRank dimensions.
Result<LoadRequest> whole_tensor(const TensorInfo& info);
// InvalidArgument for a slice outside the shape or through a packed block.
Result<LoadRequest> sliced_tensor(const TensorInfo& info, const AxisSlice& slice);

// All or an error. Buffers in the order of the requests.
Result<LoadedTensors> load_tensors(std::span<const FileSource> sources, std::span<const LoadRequest> requests,
                                   const AllocatorPtr& allocator, const LoadOptions& options);

}  // namespace berth::formats
