// METAL on top of Buffer: what a GPU is, and host memory that the GPU works on where it lies. Metal's own objects go in
// and out through the common interface: Buffer::import takes an MTL::Buffer* as its address (nothing is copied, and it
// is released only by the callback you give), native_handle() gives one, Queue::record_native hands out the
// MTL::CommandBuffer* with no encoder open, and Device::native() is the MTL::Device*. Any thread may call.
//
// This header needs no metal-cpp, and its functions are there in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "berth/base/result.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"

namespace berth {

struct MetalInfo {
  std::string name{};
  std::uint64_t registry_id = 0;
  bool unified_memory = false;
  std::size_t working_set_bytes = 0;  // what Metal recommends to stay below
  std::size_t max_buffer_bytes = 0;
  std::size_t allocated_bytes = 0;  // of this process, as Metal counts it
  bool residency_sets = false;      // false on macOS before 15
};

// kInvalidArgument if the device is not a METAL device, or this build has none.
Result<MetalInfo> metal_info(Device& device);

// The same bytes as a buffer of `metal`, without a copy: memory of CPU, or a file mapped by DISK, such as a tensor of a
// weight file. Its dtype, shape and contents are the same, a read-only one stays so, and the host's buffer lives as
// long as the new one. The pages that the window touches are wrapped, so wrapping a whole file and viewing its tensors
// costs one Metal object. It is not in the residency set: StepBuffers::register_existing puts it there.
// kNotAllocated; kNotCpuAccessible for other devices' memory; kMisaligned where the window shares a page with memory that
// is not the buffer's (allocate with the page's alignment and whole pages, or 1 MiB and more); kOutOfMemory past
// limits().max_block_bytes; kIo for a file that shrank; kInvalidArgument if `metal` is not a METAL device.
Result<Buffer> metal_wrap(DevicePtr metal, const Buffer& host);

}  // namespace berth
