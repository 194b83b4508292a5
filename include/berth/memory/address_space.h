// Addresses apart from memory. A range of addresses is reserved once; parts of it are given physical memory and lose it
// again while the addresses stay. Growable and evictable memory are built on this. Made by Device::make_address_space
// and must not outlive the device. Any thread may call, but two threads must not change the same range at once.
//
//   reserve   |.................................|      addresses only
//   map       |#########|.......|###############|      memory
//   unmap     |.........|.......|###############|      the same addresses, memory given back
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "berth/base/result.h"

namespace berth {

class AddressSpace {
 public:
  virtual ~AddressSpace() = default;

  // All addresses and sizes are multiples of this.
  virtual std::size_t granularity() const noexcept = 0;
  // Whether the host may read and write mapped memory at its address.
  virtual bool is_host() const noexcept = 0;

  // kOutOfMemory if the address range cannot be reserved.
  virtual Result<std::uint64_t> reserve(std::size_t bytes) = 0;
  // Requires: a whole reservation, with nothing mapped.
  virtual void unreserve(std::uint64_t address, std::size_t bytes) noexcept = 0;

  // Maps fresh memory with undefined contents. kOutOfMemory; a failed call changes nothing.
  virtual Result<void> map(std::uint64_t address, std::size_t bytes) = 0;
  // Waits for work that may use the range, then releases its memory. Requires: exactly the range of one map().
  virtual Result<void> unmap(std::uint64_t address, std::size_t bytes) = 0;
};

}  // namespace berth
