// Host copies at the bandwidth of the machine: one thread for small ones, all of them for large ones, where
// page faults and a single core's memory channel are the limit. Each returns when the bytes are there.
#pragma once

#include <cstddef>
#include <functional>

#include "berth/base/result.h"

namespace berth {

// Below this size a second thread costs more than it brings.
inline constexpr std::size_t kParallelCopyBytes = std::size_t{4} << 20;

// memmove semantics.
void copy_host(void* target, const void* source, std::size_t bytes) noexcept;
void fill_host(void* target, std::uint8_t value, std::size_t bytes) noexcept;

// Calls `piece(offset, bytes)` for pieces that cover [0, bytes), in parallel when that helps. Returns the first
// error by offset.
Result<void> for_each_piece(std::size_t bytes, const std::function<Result<void>(std::size_t, std::size_t)>& piece);

}  // namespace berth
