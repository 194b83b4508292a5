// Virtual-memory mapping: reserves a range of addresses once, then maps physical memory to parts of it and unmaps it
// while the addresses stay reserved. Growable and evictable memory are built on this. Device::make_address_space
// creates one; it must not outlive the device. Any thread may call, but two threads must not change the same range at
// the same time.
//
//   reserve   |.................................|      addresses only
//   map       |#########|.......|###############|      memory
//   unmap     |.........|.......|###############|      same addresses, memory released
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "berth/base/result.h"
#include "berth/memory/shared_memory.h"

namespace berth {

// Memory that is mapped at addresses of its own and has a descriptor.
struct SharedMapping {
  std::uint64_t address = 0;
  std::size_t bytes = 0;    // mapped, a multiple of the granularity
  Descriptor descriptor{};  // for map_shareable() only
};

// Physical memory without an address: frames of one size, which map_frames() maps at any number of addresses. Its
// memory is released when it is destroyed and nothing maps it.
class Frames {
 public:
  virtual ~Frames() = default;
};

class AddressSpace {
 public:
  virtual ~AddressSpace() = default;

  // All addresses and sizes must be multiples of this.
  virtual std::size_t granularity() const noexcept = 0;
  // True if the host can read and write mapped memory at its address.
  virtual bool is_host() const noexcept = 0;

  // kOutOfMemory if the address range cannot be reserved.
  virtual Result<std::uint64_t> reserve(std::size_t bytes) = 0;
  // Requires: a whole reservation, with nothing mapped.
  virtual void unreserve(std::uint64_t address, std::size_t bytes) noexcept = 0;

  // Maps fresh memory with undefined contents. kOutOfMemory; a failed call changes nothing.
  virtual Result<void> map(std::uint64_t address, std::size_t bytes) = 0;
  // Waits for work that may use the range, then releases its memory. Requires: exactly the range of one map() call.
  virtual Result<void> unmap(std::uint64_t address, std::size_t bytes) = 0;

  // --- One memory at several addresses ---
  // The defaults return kUnsupported.
  // `count` frames of `bytes` bytes each, with undefined contents. kOutOfMemory. Requires: the address space outlives
  // them.
  virtual Result<std::unique_ptr<Frames>> make_frames(std::size_t bytes, std::size_t count);
  // Maps `count` frames, the first of which is `first`, one after the other at reserved addresses. They may be mapped
  // elsewhere too: what is written at one address is read at all of them, on a GPU by work that comes later. A failed
  // call changes nothing. kOutOfMemory. Requires: the frames exist, and nothing is mapped there.
  virtual Result<void> map_frames(std::uint64_t address, const Frames& frames, std::size_t first, std::size_t count);
  // Waits for work that may use the range, then takes frames from it. Requires: map_frames() mapped `count` frames of
  // these there, in one call or several.
  virtual Result<void> unmap_frames(std::uint64_t address, const Frames& frames, std::size_t count);

  // --- Memory of several processes, at addresses that are reserved and mapped together ---
  // The defaults return kUnsupported.
  // Fresh memory that map_shared() of another process can map. kOutOfMemory; kIo if the process has too many
  // descriptors.
  virtual Result<SharedMapping> map_shareable(std::size_t bytes);
  // A new descriptor of memory that map_shareable() made. kIo.
  virtual Result<Descriptor> copy_descriptor(const Descriptor& descriptor, SharedAccess access);
  // Maps the memory that another process shares, all of it; the descriptor may be closed afterwards. `bytes` is its
  // size, or 0 if the system knows it. kInvalidArgument for a descriptor that is not open; kInvalidData for one that is
  // no shared memory, or whose memory could shrink while it is mapped; kSizeMismatch for less memory than `bytes`;
  // kReadOnly to write what was shared for reading; kOutOfMemory.
  virtual Result<SharedMapping> map_shared(int descriptor, std::size_t bytes, SharedAccess access);
  // Unmaps what one of the two has mapped. Waits for work that may use it.
  virtual void unmap_shared(std::uint64_t address, std::size_t bytes) noexcept;
};

}  // namespace berth
