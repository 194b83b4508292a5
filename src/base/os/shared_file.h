// Unnamed files in memory that processes share, where Linux and macOS differ. Any thread may call.
#pragma once

#include <cstddef>

namespace berth::internal {

// A file of `bytes` zeroes whose size nobody can change, or -1 with errno; ENOTSUP where the system has no such files.
// The caller closes it.
int make_shared_file(std::size_t bytes) noexcept;

// A second descriptor of such a file that can be mapped for reading only, or -1 with errno.
int reopen_for_reading(int descriptor) noexcept;

// True if nobody can make the file smaller, so that mapped pages of it stay valid. False, with errno EBADF if the
// descriptor is not open.
bool cannot_shrink(int descriptor) noexcept;

}  // namespace berth::internal
