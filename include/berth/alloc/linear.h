// A linear allocator: it takes slabs from the layer below and hands out their bytes one after another, in multiples of
// 64. A mark names a position; reset() goes back to it and gives all bytes after it back at once. Any thread may call.
// The thread that allocates first owns the allocator and takes no lock; the first call of another thread ends that, and
// every later call takes a mutex. The allocator must outlive its blocks. Slabs go back to the layer below in trim() and
// in the destructor.
//
//   auto scratch = berth::make_linear(device);
//   const auto mark = scratch->mark();
//   ...                                   // allocate and release, in any order
//   scratch->reset(mark).value();         // the next request starts at the mark again
//
// A release of the newest block moves the position back. A release in any other order is counted, and its bytes are
// given back by the next reset, or when the last block since the newest mark is released. Memory that submitted work
// still uses is never handed out again: reset() sets such slabs aside until their timepoints are reached.
//
// On devices whose blocks are objects and not addresses (WEBGPU, METAL), buffers are parts of objects: a window
// names the object and the offset in it, a multiple of 256, and native_handle() is 0. A block that is not allocated for
// a buffer cannot say where it begins: such requests go to the layer below, and marks, checks and counters work as
// elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "berth/alloc/adaptor.h"

namespace berth {

struct LinearOptions {
  // The size of a slab. A larger request gets a slab of its own size.
  std::size_t slab_bytes = std::size_t{2} << 20;
  Name label{"linear"};  // of the slabs, in reports of the layers below
};

struct LinearCounters {
  std::size_t live_bytes = 0;  // requested and not released; of parts of objects, in whole multiples of 256
  std::size_t live_count = 0;
  std::size_t peak_bytes = 0;     // the highest live_bytes so far
  std::size_t waiting_bytes = 0;  // released out of order, and not given back yet
  std::size_t waiting_count = 0;
  std::uint64_t out_of_order = 0;   // all releases out of order so far
  std::size_t held_bytes = 0;       // slabs taken from the layer below
  std::size_t set_aside_bytes = 0;  // the part of held_bytes that submitted work may still use after a reset
  std::size_t slabs = 0;
};

class LinearMemory : public AllocatorAdaptor {
 public:
  // A position. A plain value, valid until a reset to an earlier mark. The default is the beginning.
  struct Mark {
    std::uint32_t level = 0;
    std::uint64_t serial = 0;
  };

  std::string_view name() const noexcept final { return "linear"; }

  // allocate() and release() are O(1) within a slab, and then neither allocate heap memory nor build a string. A
  // pressure callback that runs while a new slab is taken must not call this allocator.

  // The position now. A mark takes about 150 bytes until a reset to an earlier one; marks of the same position are one.
  virtual Mark mark() = 0;

  // Gives everything that was allocated after the mark back. The mark stays valid. kInvalidUsage, and nothing changes,
  // if a block allocated after the mark is still live, or if the mark is no longer valid. O(marks passed + slabs).
  virtual Result<void> reset(Mark mark) = 0;
  Result<void> reset() { return reset(Mark{}); }

  // O(slabs + marks).
  virtual LinearCounters counters() const = 0;

 protected:
  using AllocatorAdaptor::AllocatorAdaptor;
};

// A slab has at least 64 bytes. Requires: inner is not null.
std::shared_ptr<LinearMemory> make_linear(AllocatorPtr inner, LinearOptions options = {});

}  // namespace berth
