// Matching of tensor names with the patterns of sharding rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace berth::internal {

// Whether the pattern has a '#', which stands for a number.
inline bool has_number(std::string_view pattern) {
  return pattern.find('#') != std::string_view::npos;
}

// Whether `name` fits `pattern`. The number that the last '#' stood for is stored in `number`; without '#' it is not
// changed. O(name * pattern).
bool fits(std::string_view pattern, std::string_view name, std::optional<std::uint64_t>& number);

}  // namespace berth::internal
