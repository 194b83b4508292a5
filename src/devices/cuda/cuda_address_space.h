// GPU addresses with and without memory, through the driver's virtual memory calls. See AddressSpace.
#pragma once

#include "memory/address_space.h"

namespace berth::cuda {

// Unsupported on a GPU without virtual memory management. Requires: a CUDA device, which outlives the result.
Result<std::unique_ptr<AddressSpace>> make_address_space(Device& device);

}  // namespace berth::cuda
