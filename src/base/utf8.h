// Text from files: checks that it is UTF-8, and prints it safely if it is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace berth::internal {

// The index of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms); text.size() if
// there is none. O(bytes).
std::size_t first_invalid_utf8(std::string_view text) noexcept;

// The text in double quotes, with control characters, quotes and malformed bytes escaped, truncated to `limit` bytes.
// Safe to print for any input.
std::string quoted(std::string_view text, std::size_t limit = 200);

// The text without quotes: control characters, marks that change the order of text, and malformed bytes are escaped as
// \x1b. With `keep_lines`, ends of lines stay. Safe to print on a terminal for any input.
std::string printable(std::string_view text, bool keep_lines = false);

}  // namespace berth::internal
