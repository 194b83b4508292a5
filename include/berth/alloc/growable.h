// An allocator over one range of reserved addresses that grows in place: physical memory is mapped in steps as
// allocations need it, so addresses never change and growing copies nothing. trim() unmaps the steps that hold no live
// block. Any thread may call. It must outlive its blocks and keeps its device alive. Available on CPU and CUDA.
//
// On devices whose memory is objects and not addresses (WEBGPU, METAL, REMOTE), a step is a slab: one object that holds
// several small buffers, and a window names the object and the offset in it. Buffers of more than 1/8 of a step, and
// blocks that are not allocated for a buffer, have an object of their own.
//
// defragment() moves buffers together while the program runs, so that whole steps become empty and go back to the
// system:
//
//   step    |aa..b...|..cc....|d.......|      three steps, each with a little in it
//           |aabccd..|........|........|      one; the handles a, b, c and d are what they were
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"

namespace berth {

struct GrowableOptions {
  std::size_t reserve_bytes = std::size_t{64} << 30;  // address space, or the most that all slabs take; uses no memory
  std::size_t step_bytes = std::size_t{16} << 20;     // memory is mapped in multiples of this
};

struct GrowableCounters {
  std::size_t reserved_bytes = 0;
  std::size_t mapped_bytes = 0;   // backed by memory
  std::size_t used_bytes = 0;     // live blocks
  std::size_t pending_bytes = 0;  // released, but their last use is not reached
};
std::string to_string(const GrowableCounters& counters);

struct DefragmentOptions {
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();      // moved in this pass
  std::chrono::nanoseconds max_time = std::chrono::nanoseconds::max();  // no move starts later than this
  // Also moves buffers over addresses without memory, so that free addresses become contiguous. Only needed if
  // GrowableOptions::reserve_bytes is not much larger than the memory.
  bool pack_addresses = false;
};

struct DefragmentResult {
  struct Stayed {
    std::size_t count = 0;
    std::size_t bytes = 0;
  };
  std::size_t moved_bytes = 0;
  std::size_t moved_count = 0;
  std::size_t returned_bytes = 0;  // given back to the system
  // Buffers with free memory before them that did not move, by reason.
  Stayed held{};       // somebody has their address, or had it and did not say when he was done
  Stayed in_use{};     // recorded or submitted work uses them
  Stayed too_large{};  // larger than max_bytes
  Stayed failed{};     // the device could not copy them; see `error`
  // Blocks that no buffer of this allocator owns, such as those of a pool on top, and objects that belong to one buffer
  // alone. These never move.
  Stayed not_buffers{};
  bool finished = false;  // the pass reached the end; if not, the next one goes on where this one stopped
  std::chrono::nanoseconds longest_pause{0};  // for which one buffer was out of reach
  std::optional<Error> error{};               // the first failure of the device; what moved before it has moved
};
std::string to_string(const DefragmentResult& result);

class GrowableMemory : public Allocator {
 public:
  virtual GrowableCounters counters() const = 0;

  // Moves buffers to lower addresses, into free memory before them, and unmaps the steps that become empty. Handles
  // stay valid, and so do views. A buffer moves only if it was allocated from this object directly, no work that is
  // recorded or submitted uses it, and nobody holds its address: as_raw_ptr(), as_slice() and the like,
  // native_handle(), CudaSlice and registration with a residency set hold it for good, a window() and a DLPack tensor
  // while they exist. Other threads may use everything meanwhile; one that wants a buffer that is on its way waits
  // until it has arrived. Waits for work of other queues only to unmap memory, where the device must. Never fails as a
  // whole: a failure of the device is in the result, and every buffer then has its contents. Only if the device does
  // not answer again is a buffer out of reach: its use fails with the error of the device, and a later use tries again.
  // O(buffers + steps) and the bytes moved, with slabs O(buffers x slabs). A block moves only if it gains at least
  // 1/256 of its size; over its own bytes in a slab, 1/64. Requires: the calling thread is not inside a function that a
  // queue calls to record.
  virtual DefragmentResult defragment(const DefragmentOptions& options = {}) = 0;
};

// kUnsupported if the device has neither virtual-memory mapping nor objects to divide; kInvalidArgument for a size of
// zero or without a device; kOutOfMemory if the address range cannot be reserved or a step is larger than every address
// range. allocate() is O(1) plus the steps that it maps; with slabs O(slabs).
Result<std::shared_ptr<GrowableMemory>> make_growable(DevicePtr device, const GrowableOptions& options = {});

}  // namespace berth
