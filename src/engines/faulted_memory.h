// Host memory that is there when it is handed out: its pages are faulted in at once, in one call, instead of one by
// one in the middle of the first run. For arenas, which are used to the last byte. An allocator around an allocator.
#pragma once

#include "berth/memory/allocator.h"

namespace berth::engines {

// Requires: `inner` gives host memory.
AllocatorPtr faulted(AllocatorPtr inner);

}  // namespace berth::engines
