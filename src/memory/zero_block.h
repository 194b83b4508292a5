// Zeroing memory that the host may not reach.
#pragma once

#include "berth/memory/device.h"

namespace berth::internal {

// Zeroes `bytes` bytes of the object of `block`, from `start` on, through the default queue of its device, whatever use
// the block was allocated for, and waits for it. The device's error.
Result<void> zero_block(Device& device, const Block& block, std::size_t bytes, std::uint64_t start = 0);

}  // namespace berth::internal
