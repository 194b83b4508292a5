// Where blocks come from. An allocator is a policy around another allocator: a pool, a limit, a tracer or a
// fault injector; at the bottom of every stack stands a Device. Allocators stack in any order, are shared by
// std::shared_ptr, live at least as long as the blocks they gave out, and may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "berth/base/result.h"
#include "berth/memory/block.h"

namespace berth {

class Device;
struct OutOfMemory;

class Allocator {
 public:
  Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator() = default;

  // A block of at least spec.bytes at spec.alignment or better. Zero bytes is legal and calls no driver.
  // OutOfMemory with an explanation, InvalidArgument for an alignment that is not a power of two, or what
  // the layers below report. A failed call changes nothing.
  virtual Result<Block> allocate(const BlockSpec& spec) = 0;

  // Takes back a block that came from this allocator, unchanged. Memory is reused or freed only after
  // `last_use` is reached. Requires: not returned before.
  virtual void release(const Block& block, Timepoint last_use = {}) noexcept = 0;

  // The device at the bottom of the stack.
  virtual Device& device() noexcept = 0;

  // What this layer does, in one word: "pool", "limit", "CPU".
  virtual std::string_view name() const noexcept = 0;

  // Gives cached memory back to the layer below until at most `keep_bytes` stay cached. Returns the bytes
  // given back.
  virtual std::size_t trim(std::size_t keep_bytes = 0) noexcept {
    static_cast<void>(keep_bytes);
    return 0;
  }

  // Adds what this layer and those below know (live, cached, peak, budgets, holders) to an explanation.
  virtual void explain(OutOfMemory& report) const { static_cast<void>(report); }
};

using AllocatorPtr = std::shared_ptr<Allocator>;

}  // namespace berth
