// What the limits of the machine, of a container and of the process leave of memory. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::internal {

struct SystemLimit {
  std::string name{};
  std::uint64_t free_bytes = 0;
};
struct SystemMemory {
  std::vector<SystemLimit> limits{};
  std::uint64_t huge_page_bytes = 0;
};

// Files of the system are looked up below `root`, which is "" except in tests. kIo if the memory of the machine is not
// told.
Result<SystemMemory> system_memory(const std::string& root = "");

}  // namespace berth::internal
