// Files that are read whole: opened without waiting, and read up to a limit. Any thread may call.
#pragma once

#include <cstdint>
#include <string>

#include "berth/base/result.h"

namespace berth::internal {

// More than any text or recording that people make, and less than a machine has.
inline constexpr std::uint64_t kMostRead = std::uint64_t{1} << 30;

// The contents of a regular file, or of a pipe such as a shell's <(command). kNotFound if there is none of this name.
// kIo for other special files, for a pipe that nobody writes to, and if reading fails. kInvalidData if there are more
// than `most` bytes. O(bytes).
Result<std::string> read_whole_file(const std::string& path, std::uint64_t most = kMostRead);

// The same for an open descriptor, such as standard input. `name` is for the messages. The descriptor stays open.
Result<std::string> read_whole_stream(int descriptor, const std::string& name, std::uint64_t most = kMostRead);

// Opens a regular file for reading; the caller closes the descriptor. kNotFound, kIo; kIo for anything else, without
// waiting for the writer of a pipe.
Result<int> open_regular_file(const std::string& path);

}  // namespace berth::internal
