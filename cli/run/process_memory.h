// The memory and time of this process, as the system reports them. Any thread may call.
#pragma once

#include <cstdint>

namespace berth::cli {

// The most memory that was resident at once since the process started, in bytes; 0 where the system does not tell.
std::uint64_t process_peak();

// Processor time of all threads of this process: unlike wall time, other load hardly changes it.
double process_cpu_ms();

}  // namespace berth::cli
