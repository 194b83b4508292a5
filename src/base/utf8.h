// Text that came from a file: is it UTF-8, and how to show it when it may not be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace berth::formats {

// The index of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms);
// text.size() when all of it is well-formed. O(bytes).
std::size_t first_invalid_utf8(std::string_view text) noexcept;

// In double quotes, with control characters, quotes and malformed bytes escaped, cut at `limit` bytes: safe to
// print whatever the file holds.
std::string quoted(std::string_view text, std::size_t limit = 200);

}  // namespace berth::formats
