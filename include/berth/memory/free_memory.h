// How much host memory this process may still take. A machine, a container and a process each have limits; the smallest
// of what they leave is the answer. Read from the system at each call. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth {

// What one limit leaves.
struct MemoryLimit {
  std::string name{};  // "MemAvailable", "cgroup memory.max of /system.slice", "RLIMIT_AS"
  std::uint64_t free_bytes = 0;
};

struct FreeMemory {
  std::uint64_t bytes = 0;            // the smallest of the limits
  std::string limited_by{};           // its name
  std::vector<MemoryLimit> limits{};  // all that are set
  // Free pages of the pool of huge pages. They are not part of `bytes`: only mappings that ask for them get them.
  std::uint64_t huge_page_bytes = 0;
};

// Linux: MemAvailable, the limits of the process's cgroup and of those around it (version 1 and 2, with the page cache
// that can be dropped), what strict overcommit leaves, and the process's limits on addresses and data. kIo if the
// system does not tell its memory.
Result<FreeMemory> free_host_memory();

}  // namespace berth
