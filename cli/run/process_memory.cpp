#include "run/process_memory.h"

#ifdef __APPLE__
#include <mach/mach.h>
#endif

#include <time.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace berth::cli {

std::uint64_t process_peak() {
#ifdef __APPLE__
  mach_task_basic_info info{};
  mach_msg_type_number_t words = MACH_TASK_BASIC_INFO_COUNT;
  if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info), &words) == KERN_SUCCESS)
    return info.resident_size_max;
#else
  constexpr std::string_view kField = "VmHWM:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kField)) return std::strtoull(line.c_str() + kField.size(), nullptr, 10) * 1024;
#endif
  return 0;
}

double process_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

}  // namespace berth::cli
