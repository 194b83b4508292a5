// An allocator whose blocks can be shared with other processes: Buffer::share gives a descriptor, and the other process
// imports it. Each block has memory of its own, in whole pages (CPU) or the driver's granularity, 2 MiB (CUDA), and
// keeps one descriptor open, so this is meant for large buffers. On CPU the memory is an unnamed file in memory whose
// size is sealed; on CUDA it is the driver's exportable memory. Memory that was shared is never reused for another
// block. Any thread may call. It must outlive its blocks and keeps its device alive.
#pragma once

#include <memory>

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"

namespace berth {

// kUnsupported if the device has no memory that processes can share; kInvalidArgument without a device.
Result<AllocatorPtr> make_shareable(DevicePtr device);

}  // namespace berth
