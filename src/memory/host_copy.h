// Host copies at the memory bandwidth of the machine: one thread for small copies, all threads for large ones, where
// page faults and the memory channel of a single core are the limit. Each function returns when the copy is complete.
#pragma once

#include <cstddef>
#include <functional>

#include "berth/base/result.h"

namespace berth::internal {

// Below this size, a second thread costs more than it gains.
inline constexpr std::size_t kParallelCopyBytes = std::size_t{4} << 20;

// memmove semantics.
void copy_host(void* target, const void* source, std::size_t bytes) noexcept;
void fill_host(void* target, std::uint8_t value, std::size_t bytes) noexcept;

// Calls `piece(offset, bytes)` for pieces that cover [0, bytes), in parallel if that is faster. Returns the first error
// by offset.
Result<void> for_each_piece(std::size_t bytes, const std::function<Result<void>(std::size_t, std::size_t)>& piece);

}  // namespace berth::internal
