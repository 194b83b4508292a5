// Counters as text: "live_bytes=4096, live_count=1", with the names that they have in C++ and in Python.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace berth::internal {

inline std::string fields(std::initializer_list<std::pair<std::string_view, std::uint64_t>> all) {
  std::string text;
  for (const auto& [name, value] : all) {
    if (!text.empty()) text += ", ";
    text.append(name).append("=").append(std::to_string(value));
  }
  return text;
}

}  // namespace berth::internal
