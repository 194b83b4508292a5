// NumPy's .npy files, as far as tensors of numbers need them: little-endian, C order, version 1 to 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_session.h"

namespace berth::cli {

// The tensor in a file. Io: it cannot be read. InvalidData: it is no .npy file, or not of this kind.
Result<ort::Tensor> read_npy(const std::string& path);

// Io when the file cannot be written; Unsupported for an element type that NumPy has no name for.
Result<void> write_npy(const std::string& path, int element_type, const std::vector<std::int64_t>& shape,
                       std::span<const std::byte> bytes);

}  // namespace berth::cli
