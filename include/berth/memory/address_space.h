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
