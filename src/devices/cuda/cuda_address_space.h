// Virtual-memory mapping on a GPU, by the virtual memory functions of the driver. See AddressSpace.
#pragma once

#include "berth/memory/address_space.h"

namespace berth::internal::cuda {

class CudaDevice;

// kUnsupported if the GPU has no virtual memory management. Requires: the device outlives the result.
Result<std::unique_ptr<AddressSpace>> make_address_space(CudaDevice& device);

}  // namespace berth::internal::cuda
