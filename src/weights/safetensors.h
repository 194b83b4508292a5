// Reads the header of a safetensors file: eight bytes of length, a JSON object, then the bytes of the tensors without
// gaps. As strict as the format: what the reference implementation refuses is refused here too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "berth/base/result.h"
#include "weights/byte_source.h"
#include "weights/tensor_table.h"

namespace berth::internal::formats {

// The limit of the format.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

// The table of a file. kInvalidData, with the position, for malformed input. O(header).
Result<TensorTable> read_safetensors(const ByteSource& source);

// The format's name for a dtype, such as "F32"; empty if it has none.
std::string_view safetensors_dtype(DType dtype) noexcept;

// An index of shards: which file holds each tensor.
struct SafetensorsIndex {
  std::vector<std::string> files;  // plain names beside the index, each once, in order of first mention
  TensorTable keeper;              // the bytes behind the views below; its metadata is the index's own
  std::vector<std::pair<std::string_view, std::uint32_t>> weight_map;  // tensor, position in files
};
// kInvalidData also for a file name that leads out of the index's folder.
Result<SafetensorsIndex> read_safetensors_index(const ByteSource& source);

}  // namespace berth::internal::formats
