// An allocator over one range of reserved addresses that grows in place: physical memory is mapped in steps as
// allocations need it, so addresses never change and growing copies nothing. trim() unmaps the steps that hold no live
// block. Any thread may call. It must outlive its blocks and keeps its device alive. Available on CPU and CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"

namespace berth {

struct GrowableOptions {
  std::size_t reserve_bytes = std::size_t{64} << 30;  // address space only; uses no memory
  std::size_t step_bytes = std::size_t{16} << 20;     // memory is mapped in multiples of this
};

struct GrowableCounters {
  std::size_t reserved_bytes = 0;
  std::size_t mapped_bytes = 0;   // backed by memory
  std::size_t used_bytes = 0;     // live blocks
  std::size_t pending_bytes = 0;  // released, but their last use is not reached
};
std::string to_string(const GrowableCounters& counters);

class GrowableMemory : public Allocator {
 public:
  virtual GrowableCounters counters() const = 0;
};

// kUnsupported if the device has no virtual-memory mapping; kInvalidArgument for a size of zero or without a device;
// kOutOfMemory if the address range cannot be reserved or a step is larger than every address range. allocate() is O(1)
// plus the steps that it maps.
Result<std::shared_ptr<GrowableMemory>> make_growable(DevicePtr device, const GrowableOptions& options = {});

}  // namespace berth
