// The memory of this process, as the system reports it. Any thread may call.
#pragma once

#include <cstdint>

namespace berth::cli {

// The most memory that was resident at once since the process started, in bytes; 0 where the system does not tell.
std::uint64_t process_peak();

}  // namespace berth::cli
