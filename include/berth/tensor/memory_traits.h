// Memory by what it must be able to do. make_memory() chooses the allocator that has all of the traits, or says which
// two exclude each other and why. docs/sharing.md has the table of all combinations.
#pragma once

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"

namespace berth {

struct MemoryTraits {
  bool growable = false;     // one address range that grows in place: GrowableMemory
  bool evictable = false;    // the memory can be released while addresses stay: EvictableMemory
  bool shareable = false;    // another process can map it: Buffer::share
  bool registrable = false;  // can be registered with a transport, which uses its pages while it is registered
};

// An allocator of the device with these traits and default options; the device itself if there are none. kUnsupported
// if two traits exclude each other, or if the device lacks one; kInvalidArgument without a device.
Result<AllocatorPtr> make_memory(DevicePtr device, const MemoryTraits& traits);

}  // namespace berth
