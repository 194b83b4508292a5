// The memory of an engine outside of planned runs: recorded runs, kept outputs, small weights. Blocks below 1 MiB are
// cut from one range of addresses, best fit first, so that a recorded run holds little more than what is live at once;
// a heap of the system held up to five times as much, and kept it in the part of the thread that ran. Larger blocks are
// mapped one by one. trim() gives every page back that no block uses, and trims the heap of the process. Any thread may
// call. It must outlive its blocks.
#pragma once

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"

namespace berth::internal {

// Where the system refuses the addresses, all blocks come from the device.
AllocatorPtr make_engine_pool(DevicePtr cpu);

}  // namespace berth::internal
