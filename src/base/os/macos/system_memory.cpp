#include "base/os/system_memory.h"

#include <sys/resource.h>
#include <sys/sysctl.h>

#include "base/os/system_pages.h"

namespace berth::internal {

Result<SystemMemory> system_memory(const std::string& root) {
  static_cast<void>(root);  // there are no files to look up
  std::uint32_t pages = 0;
  std::size_t bytes = sizeof pages;
  if (sysctlbyname("vm.page_free_count", &pages, &bytes, nullptr, 0) != 0)
    return Error(Code::kIo, Layer::kDevice, "the system does not tell its free pages; give the memory yourself");
  SystemMemory memory;
  memory.limits.push_back({"vm.page_free_count", std::uint64_t{pages} * page_bytes()});
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    memory.limits.push_back({"RLIMIT_AS", limit.rlim_cur});
  return memory;
}

}  // namespace berth::internal
