#include "base/os/system_memory.h"

#include <sys/resource.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "base/input_file.h"

namespace berth::internal {
namespace {

// Limits at or above this stand for none: version 1 of cgroups has no word for it.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

std::optional<std::string> text_of(const std::string& path) {
  auto text = read_whole_file(path, std::uint64_t{1} << 20);
  if (!text) return std::nullopt;
  return *std::move(text);
}

std::optional<std::uint64_t> number_in(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\n");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto [after, problem] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (problem != std::errc{}) return std::nullopt;
  return value;
}

// The number after `name` at the start of a line.
std::optional<std::uint64_t> field(std::string_view text, std::string_view name) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.starts_with(name)) return number_in(line.substr(name.size()));
    at += line.size() + 1;
  }
  return std::nullopt;
}

std::uint64_t less(std::uint64_t limit, std::uint64_t used) {
  return limit > used ? limit - used : 0;
}

// What one limit of a group leaves, of what `used` counts against it.
void add_group_limit(const std::string& folder, std::string_view shown, const char* name, std::uint64_t used,
                     SystemMemory& memory) {
  const auto text = text_of(folder + "/" + name);
  const auto limit = text ? number_in(*text) : std::nullopt;  // "max" is no number
  if (!limit || *limit >= kNoLimit) return;
  memory.limits.push_back(
      {std::string("cgroup ") + name + " of " + std::string(shown.empty() ? "/" : shown), less(*limit, used)});
}

// One level of a hierarchy. File pages that can be dropped do not count. Above memory.high the kernel slows a process
// down until it stands still, so it is a limit too.
void add_group(const std::string& folder, std::string_view shown, bool second, SystemMemory& memory) {
  const auto used_text = text_of(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"));
  const auto used = used_text ? number_in(*used_text) : std::nullopt;
  if (!used) return;
  const auto statistics = text_of(folder + "/memory.stat");
  const std::uint64_t droppable =
      statistics ? field(*statistics, second ? "inactive_file " : "total_inactive_file ").value_or(0) : 0;
  const std::uint64_t held = less(*used, droppable);
  add_group_limit(folder, shown, second ? "memory.max" : "memory.limit_in_bytes", held, memory);
  if (second) add_group_limit(folder, shown, "memory.high", held, memory);
}

// The group of the process and all groups around it. In a container the path may be that of the host: then only the
// root that is mounted counts.
void add_groups(const std::string& mount, std::string_view path, bool second, SystemMemory& memory) {
  if (path == "/") path = {};
  for (;;) {
    add_group(mount + std::string(path), path, second, memory);
    if (path.empty()) return;
    const std::size_t slash = path.rfind('/');
    path = path.substr(0, slash == std::string_view::npos ? 0 : slash);
  }
}

void add_cgroups(const std::string& root, SystemMemory& memory) {
  const auto groups = text_of(root + "/proc/self/cgroup");
  if (!groups) return;
  for (std::size_t at = 0; at < groups->size();) {
    // hierarchy:controllers:path
    const std::string_view line = std::string_view(*groups).substr(at, groups->find('\n', at) - at);
    at += line.size() + 1;
    const std::size_t first = line.find(':'), last = line.find(':', first + 1);
    if (first == std::string_view::npos || last == std::string_view::npos) continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, last - first - 1)) + ",";
    const std::string_view path = line.substr(last + 1);
    if (controllers == ",,") add_groups(root + "/sys/fs/cgroup", path, true, memory);
    if (controllers.find(",memory,") != std::string::npos)
      add_groups(root + "/sys/fs/cgroup/memory", path, false, memory);
  }
}

// What a limit of the process leaves, of the kilobytes that `name` of /proc/self/status counts against it.
void add_process_limit(int which, std::string_view shown, std::string_view name, const std::string& status,
                       SystemMemory& memory) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(which), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  memory.limits.push_back({std::string(shown), less(limit.rlim_cur, field(status, name).value_or(0) * 1024)});
}

}  // namespace

Result<SystemMemory> system_memory(const std::string& root) {
  SystemMemory memory;
  const auto machine = text_of(root + "/proc/meminfo");
  const auto available = machine ? field(*machine, "MemAvailable:") : std::nullopt;
  if (!available)
    return Error::with_text(
        Code::kIo, Layer::kDevice,
        root + "/proc/meminfo does not tell MemAvailable; mount /proc, or give the memory yourself");
  constexpr std::uint64_t kKilobyte = 1024;
  memory.limits.push_back({"MemAvailable", *available * kKilobyte});
  memory.huge_page_bytes =
      field(*machine, "HugePages_Free:").value_or(0) * field(*machine, "Hugepagesize:").value_or(0) * kKilobyte;
  const auto overcommit = text_of(root + "/proc/sys/vm/overcommit_memory");
  if (overcommit && number_in(*overcommit) == 2) {
    const std::uint64_t limit = field(*machine, "CommitLimit:").value_or(0) * kKilobyte;
    memory.limits.push_back({"CommitLimit", less(limit, field(*machine, "Committed_AS:").value_or(0) * kKilobyte)});
  }
  add_cgroups(root, memory);
  const std::string status = text_of(root + "/proc/self/status").value_or("");
  add_process_limit(RLIMIT_AS, "RLIMIT_AS", "VmSize:", status, memory);
  add_process_limit(RLIMIT_DATA, "RLIMIT_DATA", "VmData:", status, memory);
  return memory;
}

}  // namespace berth::internal
