// NumPy's .npy files for tensors of numbers: little-endian, C order, versions 1 to 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_session.h"

namespace berth::cli {

// The tensor in a file. kIo if it cannot be read. kInvalidData if it is not such a file.
Result<internal::ort::Tensor> read_npy(const std::string& path);

// kIo if the file cannot be written; kUnsupported for an element type that NumPy has no name for.
Result<void> write_npy(const std::string& path, int element_type, const std::vector<std::int64_t>& shape,
                       std::span<const std::byte> bytes);

}  // namespace berth::cli
