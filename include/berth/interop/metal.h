// Metal interoperability: information about a GPU, and host memory that the GPU uses in place. Metal objects pass
// through the common interface: Buffer::import accepts an MTL::Buffer* as its address (nothing is copied; only the
// given callback releases it), native_handle() returns one, Queue::record_native passes the MTL::CommandBuffer* with no
// encoder open, and Device::native() is the MTL::Device*. Any thread may call.
//
// This header does not need metal-cpp, and its functions exist in every build.
#pragma once

#include "berth/base/result.h"
#include "berth/devices/metal_info.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"

namespace berth {

// kInvalidArgument if the device is not a METAL device, or if this build does not support METAL.
Result<MetalInfo> metal_info(Device& device);

// Wraps the bytes of `host` as a buffer of `metal`, without a copy: CPU memory, or a file mapped by DISK, such as a
// tensor of a weight file. Dtype, shape and contents are the same, a read-only buffer stays read-only, and the host
// buffer lives as long as the new one. The pages that the window touches are wrapped, so wrapping a whole file and
// viewing its tensors costs one Metal object. The result is not in the residency set; StepBuffers::register_existing
// adds it.
// kNotAllocated; kNotCpuAccessible for memory of other devices; kMisaligned if the window shares a page with memory
// outside the buffer (allocate whole pages with page alignment, or 1 MiB and more); kOutOfMemory above
// limits().max_block_bytes; kIo for a truncated file; kInvalidArgument if `metal` is not a METAL device.
Result<Buffer> metal_wrap(DevicePtr metal, const Buffer& host);

}  // namespace berth
