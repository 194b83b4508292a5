// The allocator interface. An allocator is usually a policy around another allocator: a pool, a limit, a recorder or a
// fault injector. At the bottom of every stack is a Device. Allocators stack in any order, are shared by
// std::shared_ptr, must outlive the blocks they returned, and may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "berth/base/result.h"
#include "berth/memory/block.h"
#include "berth/memory/shared_memory.h"

namespace berth {

class Device;
struct OutOfMemory;
namespace internal {
class Mover;
}  // namespace internal

class Allocator {
 public:
  Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator() = default;

  // Returns a block of at least spec.bytes, aligned to at least spec.alignment. A request for zero bytes succeeds and
  // calls no driver. kOutOfMemory with an explanation; kInvalidArgument for an alignment that is not a power of two;
  // other errors of the layers below. A failed call changes nothing.
  virtual Result<Block> allocate(const BlockSpec& spec) = 0;

  // Releases a block that this allocator returned. The block must be passed back unchanged. Its memory is reused or
  // freed only after `last_use` is reached. Requires: the block was not released before.
  virtual void release(const Block& block, Timepoint last_use = {}) noexcept = 0;

  // The device at the bottom of the stack.
  virtual Device& device() noexcept = 0;

  // The flags that a block for `spec` would have, without allocating it, such as whether the host could access it.
  // Unless overridden, those of the device.
  virtual BlockFlags expected_flags(const BlockSpec& spec) noexcept;

  // A short name of this layer: "caching pool", "limit", "CPU".
  virtual std::string_view name() const noexcept = 0;

  // Returns cached memory to the layer below until at most `keep_bytes` remain cached. Returns the number of bytes
  // returned.
  virtual std::size_t trim(std::size_t keep_bytes = 0) noexcept {
    static_cast<void>(keep_bytes);
    return 0;
  }

  // Adds what this layer and the layers below know (live, cached and peak bytes, budgets, holders) to `report`.
  virtual void explain(OutOfMemory& report) const { static_cast<void>(report); }

  // The memory of a live block for another process: see Buffer::share. kUnsupported unless the memory can be shared
  // (see make_shareable) and is used by nobody else after this block.
  virtual Result<SharedMemory> share(const Block& block, SharedAccess access);

  // For the library: what moves blocks of this allocator; null if they never move.
  virtual internal::Mover* mover() noexcept { return nullptr; }
};

using AllocatorPtr = std::shared_ptr<Allocator>;

}  // namespace berth
