// Virtual-memory mapping on the host: addresses are reserved without access, map() makes them accessible, unmap()
// releases their memory. See AddressSpace.
#pragma once

#include "berth/memory/address_space.h"

namespace berth::internal::cpu {

Result<std::unique_ptr<AddressSpace>> make_address_space();

}  // namespace berth::internal::cpu
