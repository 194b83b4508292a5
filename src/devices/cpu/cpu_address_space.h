// Host addresses with and without memory: reserved without access, opened by map, emptied by unmap. See AddressSpace.
#pragma once

#include "berth/memory/address_space.h"

namespace berth::cpu {

Result<std::unique_ptr<AddressSpace>> make_address_space();

}  // namespace berth::cpu
