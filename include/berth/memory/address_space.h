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

namespace berth {

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
};

}  // namespace berth
