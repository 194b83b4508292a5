// Sizes as people write them. Called by the main thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "berth/base/result.h"

namespace berth::cli {

// "16GiB" (1024^3), "16GB" (1000^3), "1.5GiB", "4096" or "4096B": bytes. kInvalidArgument for anything else and for
// sizes beyond 2^62, with what can be written.
Result<std::uint64_t> parse_size(std::string_view text);

// "32k" or "32K" (1024 each), "1M" (1024 x 1024), "4096": a number from 1 on. kInvalidArgument.
Result<std::uint64_t> parse_count(std::string_view text);

}  // namespace berth::cli
