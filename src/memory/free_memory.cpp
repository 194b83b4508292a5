#include "berth/memory/free_memory.h"

#include <algorithm>

#include "base/os/system_memory.h"
#include "base/try.h"

namespace berth {
using namespace internal;

Result<FreeMemory> free_host_memory() {
  BERTH_TRY_ASSIGN(SystemMemory system, system_memory());
  FreeMemory memory{.huge_page_bytes = system.huge_page_bytes};
  for (SystemLimit& limit : system.limits) memory.limits.push_back({std::move(limit.name), limit.free_bytes});
  const auto smallest =
      std::min_element(memory.limits.begin(), memory.limits.end(),
                       [](const MemoryLimit& a, const MemoryLimit& b) { return a.free_bytes < b.free_bytes; });
  memory.bytes = smallest->free_bytes;
  memory.limited_by = smallest->name;
  return memory;
}

}  // namespace berth
