// One range of addresses that grows into memory: reserved once, given memory step by step as allocations need it, so
// that addresses never move and nothing is copied to grow. Blocks are cut from it; trim() gives the memory of steps
// without live blocks back. An allocator like any other: any thread may call; it lives as long as its blocks and keeps
// its device alive. On CPU and CUDA.
#pragma once

#include <cstddef>
#include <memory>

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"

namespace berth {

struct GrowableOptions {
  std::size_t reserve_bytes = std::size_t{64} << 30;  // addresses cost nothing
  std::size_t step_bytes = std::size_t{16} << 20;     // memory is taken in multiples of this
};

struct GrowableCounters {
  std::size_t reserved_bytes = 0;
  std::size_t mapped_bytes = 0;   // has memory
  std::size_t used_bytes = 0;     // live blocks
  std::size_t pending_bytes = 0;  // released, waiting for their last use
};

class GrowableMemory : public Allocator {
 public:
  virtual GrowableCounters counters() const = 0;
};

// Unsupported on devices that cannot part addresses and memory; InvalidArgument for sizes of zero; OutOfMemory when the
// addresses are not to be had. allocate() is O(1) plus the steps that it maps.
Result<std::shared_ptr<GrowableMemory>> make_growable(DevicePtr device, const GrowableOptions& options = {});

}  // namespace berth
