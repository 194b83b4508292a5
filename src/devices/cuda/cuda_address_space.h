// GPU addresses with and without memory, through the driver's virtual memory calls. See AddressSpace.
#pragma once

#include "berth/memory/address_space.h"

namespace berth::cuda {

class CudaDevice;

// kUnsupported on a GPU without virtual memory management. Requires: the device outlives the result.
Result<std::unique_ptr<AddressSpace>> make_address_space(CudaDevice& device);

}  // namespace berth::cuda
