// Addresses apart from memory: a range is reserved once, and pieces of it are given physical memory and lose it again
// while the addresses stay. Behind the growable segment and evictable memory. Any thread may call; ranges must not be
// changed by two threads at once. Lives as long as its device.
//
//   reserve   |.................................|      addresses only
//   map       |#########|.......|###############|      memory
//   unmap     |.........|.......|###############|      the same addresses, memory given back
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "berth/memory/device.h"

namespace berth {

class AddressSpace {
 public:
  virtual ~AddressSpace() = default;

  // What addresses and sizes are multiples of.
  virtual std::size_t granularity() const noexcept = 0;
  // Whether the host may read and write mapped memory at its address.
  virtual bool is_host() const noexcept = 0;

  // OutOfMemory when the addresses are not to be had.
  virtual Result<std::uint64_t> reserve(std::size_t bytes) = 0;
  // Requires: a whole reservation, with nothing mapped.
  virtual void unreserve(std::uint64_t address, std::size_t bytes) noexcept = 0;

  // Fresh memory with undefined contents. OutOfMemory; a failed call changes nothing.
  virtual Result<void> map(std::uint64_t address, std::size_t bytes) = 0;
  // Waits for work that may use the range, then gives its memory back. Requires: exactly what one map() gave.
  virtual Result<void> unmap(std::uint64_t address, std::size_t bytes) = 0;
};

// Unsupported on devices that cannot part the two.
Result<std::unique_ptr<AddressSpace>> make_address_space(Device& device);

}  // namespace berth
