// Extracts from WGSL text what Berth needs to bind a kernel: its bindings and how it uses them. This is not a parser of
// the language: it reads attributes and address spaces and skips comments. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"

namespace berth::internal::webgpu {

struct WgslBinding {
  enum class Kind : std::uint8_t { kRead, kReadWrite, kUniform };
  std::uint32_t binding = 0;
  Kind kind = Kind::kReadWrite;
  std::size_t space_at = 0;  // where "storage, read" stands in the text, and how long it is
  std::size_t space_length = 0;
};

// The bindings of group 0 by number: storage buffers 0 to n-1 (the windows of a launch, in order), then optionally one
// uniform at n (its constants). kInvalidArgument, with the line, for anything else.
Result<std::vector<WgslBinding>> wgsl_bindings(std::string_view code);

// The same code with every storage buffer declared read_write: WebGPU refuses a buffer that is bound both read-only and
// writable in one dispatch, even for windows that do not overlap.
std::string wgsl_all_writable(std::string_view code, const std::vector<WgslBinding>& bindings);

}  // namespace berth::internal::webgpu
