// Whether the host has room for the tables of a cache or a tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "berth/base/result.h"

namespace berth::internal::kv_cache {

// kOutOfMemory if tables of `bytes` bytes for `blocks` blocks are more than this process may still take. Small ones are
// not checked, and neither is anything where the system does not tell its memory.
Result<void> check_host_room(std::size_t bytes, std::uint64_t blocks);

}  // namespace berth::internal::kv_cache
