// Reads the header of a GGUF file, versions 2 and 3: typed metadata, then tensor descriptions, then aligned data.
// Values stay encoded in the bytes of the header and are decoded on request, so opening a file with a vocabulary of a
// hundred thousand strings decodes none of them.
#pragma once

#include <cstdint>
#include <optional>

#include "berth/base/result.h"
#include "weights/byte_source.h"
#include "weights/tensor_table.h"

namespace berth::internal::formats {

inline constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint32_t kGgufAlignment = 32;      // unless general.alignment says otherwise
inline constexpr std::uint64_t kMaxGgufHeader = std::uint64_t{256} << 20;

struct GgufHeader {
  TensorTable table;
  std::uint32_t version = 0;
  std::uint32_t alignment = kGgufAlignment;
  std::uint64_t data_begin = 0;
};

// kInvalidData, with the position, for malformed input; kUnsupported for version 1 and big-endian files. O(header).
Result<GgufHeader> read_gguf(const ByteSource& source);

// The number of a dtype in GGUF; none for dtypes it cannot hold.
std::optional<std::uint32_t> gguf_type(DType dtype) noexcept;
// The dtype of a number; none for numbers that the format never had or has removed.
std::optional<DType> dtype_of_gguf(std::uint32_t type) noexcept;

}  // namespace berth::internal::formats
