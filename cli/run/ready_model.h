// The seal of a model in mappable form: a few bytes at its end that say what it was made for and which bytes it has, so
// that a damaged or outdated one is found before the engine maps it. The engine does not look at bytes after its own.
// Any thread may call.
#pragma once

#include <cstdint>
#include <string>

#include "berth/base/result.h"

namespace berth::cli {

// The checksum of a file. kIo if it cannot be read. O(bytes), in a small buffer.
Result<std::uint64_t> file_checksum(const std::string& path);

// Appends the seal. `stamp` is what the model was made for. kIo. O(bytes).
Result<void> seal_model(const std::string& path, const std::string& stamp);

// Whether the file has all of its bytes and a seal with this stamp. False also if it cannot be read. O(bytes).
bool is_sealed(const std::string& path, const std::string& stamp);

}  // namespace berth::cli
