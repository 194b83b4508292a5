// What the kernel itself says about this program's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace berth::test {

// A field of the kernel's own account of the mapping at `address`, in KiB.
inline std::size_t kernel_kib(const void* address, const std::string& field) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto at = reinterpret_cast<std::uintptr_t>(address);
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with(field + ":")) {
      return std::stoul(line.substr(field.size() + 1));
    }
  }
  return 0;
}

// This program's own memory that is in place, in KiB: no file's pages.
inline std::size_t own_kib() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with("RssAnon:")) return std::stoul(line.substr(8));
  return 0;
}

}  // namespace berth::test
