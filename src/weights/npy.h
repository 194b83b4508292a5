// Reads NumPy's .npy files, versions 1 to 3, and .npz archives whose members are stored, not compressed. Arrays must be
// little-endian and in C order, because a Buffer is. An .npy file holds one tensor, named "arr_0", which is NumPy's
// name for an unnamed array.
#pragma once

#include <cstdint>
#include <string_view>

#include "berth/base/result.h"
#include "weights/byte_source.h"
#include "weights/tensor_table.h"

namespace berth::internal::formats {

// kInvalidData, with the position, for malformed input; kUnsupported for other byte orders and layouts.
Result<TensorTable> read_npy(const ByteSource& source);
Result<TensorTable> read_npz(const ByteSource& source);

// Adds the array whose .npy header begins at `begin` and whose bytes must end at `end` at the latest.
// `start` holds the first bytes from `begin` on, as many as the caller has read already. `exact`: they end there.
Result<void> add_npy(const ByteSource& source, std::uint64_t begin, std::uint64_t end, std::string_view start,
                     std::string_view name, bool exact, TensorTable& table);

}  // namespace berth::internal::formats
