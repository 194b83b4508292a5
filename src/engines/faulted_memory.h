// Host memory that is resident when it is returned: its pages are faulted in with one call, instead of one by one
// during the first run. For arenas, whose memory is all used. An allocator around an allocator; any thread may call.
#pragma once

#include "berth/memory/allocator.h"

namespace berth::engines {

// Requires: `inner` returns host memory.
AllocatorPtr faulted(AllocatorPtr inner);

}  // namespace berth::engines
