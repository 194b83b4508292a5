// Reads tensors, or slices of them, into buffers of any device. Requests are split into pieces of a few MiB; pieces
// that are adjacent in the file are read by one system call that scatters them to their targets; several threads
// process them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "berth/weights/weights.h"
#include "weights/byte_source.h"

namespace berth::internal::formats {

// A dense tensor of `rows` runs of `row_bytes` bytes each, `row_pitch` bytes apart in the file.
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

// kInvalidArgument for more than kMaxRank dimensions.
Result<LoadRequest> whole_tensor(const TensorInfo& info);
// kInvalidArgument for a slice outside the shape or through a packed block.
Result<LoadRequest> sliced_tensor(const TensorInfo& info, const AxisSlice& slice);

// What loads need of a weight file.
struct WeightAccess {
  // Its files, which stay open as long as the pointer exists.
  static std::shared_ptr<const std::vector<FileSource>> sources(const WeightFile& file);
  // kNotFound for a name.
  static Result<std::vector<LoadRequest>> requests(const WeightFile& file, std::span<const std::string_view> names);
};

// Loads all requests, or returns an error. Buffers are in the order of the requests.
Result<LoadedTensors> load_tensors(std::span<const FileSource> sources, std::span<const LoadRequest> requests,
                                   const AllocatorPtr& allocator, const LoadOptions& options);

}  // namespace berth::internal::formats
