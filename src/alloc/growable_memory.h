// The implementation of GrowableMemory: reserved addresses, mapped in steps, with offsets by two-level segregated fit.
// Blocks that buffers own can move; see defragment() in growable_defragment.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "berth/alloc/growable.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "memory/movable.h"

namespace berth::internal {

struct DefragmentPass;

class MappedGrowable final : public GrowableMemory, private Mover {
 public:
  MappedGrowable(DevicePtr device, std::unique_ptr<AddressSpace> space, std::uint64_t base, std::size_t bytes,
                 std::size_t step, OffsetAllocator offsets);
  ~MappedGrowable() override;

  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use) noexcept override;
  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "growable memory"; }
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override;
  std::size_t trim(std::size_t keep_bytes) noexcept override;
  void explain(OutOfMemory& report) const override;
  Mover* mover() noexcept override { return this; }

  GrowableCounters counters() const override;
  DefragmentResult defragment(const DefragmentOptions& options) override;

 private:
  struct Step {
    bool mapped = false;
    Name label{};          // of the request that it was mapped for
    std::size_t live = 0;  // blocks that overlap it
  };
  struct Pending {
    std::uint64_t offset;
    Timepoint last_use;
  };
  // A block on its way down. Pieces of at most `from - to` bytes are copied in order, so a piece never overwrites one
  // that is still to be copied: whatever fails, the first `recorded` bytes are in the new place, or will be when the
  // queue is done, and the others are in the old one.
  struct Move {
    std::uint64_t from = 0, to = 0;  // offsets
    std::size_t bytes = 0;
    std::size_t recorded = 0;
  };
  struct Owned {
    MovableOwner* owner;
    std::size_t alignment;
    std::optional<Move> unfinished{};
  };
  struct Candidate {
    MovableOwner* owner;
    std::uint64_t offset;
    std::size_t bytes;
    bool unfinished;
  };

  Result<Block> allocate_movable(const BlockSpec& spec, std::uint64_t& start) override {
    start = 0;
    return allocate(spec);
  }
  bool enlist(const Block& block, std::size_t alignment, MovableOwner& owner) noexcept override;
  Result<void> complete(MovableOwner& owner) override;

  // The offset of a new block with memory mapped. A failed call changes nothing.
  Result<std::uint64_t> take(const BlockSpec& spec);
  // The offset of a pending block whose last use is on `timeline` and that holds the request, if there is one: the
  // smallest, or only one of the very size.
  std::optional<std::uint64_t> take_pending(const BlockSpec& spec, TimelineId timeline, bool exact)
      BERTH_REQUIRES(mutex_);
  // The timepoint after which a block that is released with `last_use` is idle.
  Timepoint idle_after(std::uint64_t offset, Timepoint last_use) noexcept BERTH_REQUIRES(mutex_);
  // Maps the steps [first, end) where they are not and counts a block in each. If that fails, unmaps those it has
  // mapped.
  Result<void> grow(const BlockSpec& spec, std::size_t first, std::size_t end) BERTH_REQUIRES(mutex_);
  Result<void> map(const BlockSpec& spec, const std::vector<std::size_t>& steps) BERTH_REQUIRES(mutex_);
  // Unmaps steps without live blocks until `keep_bytes` remain mapped. Returns the bytes unmapped.
  std::size_t unmap_idle(std::size_t keep_bytes) noexcept BERTH_REQUIRES(mutex_);
  void give_back(std::uint64_t offset) noexcept BERTH_REQUIRES(mutex_);
  void forget_owner(std::uint64_t offset) noexcept BERTH_REQUIRES(mutex_);
  // Frees pending blocks that are idle. `all` also checks blocks behind the oldest one.
  void free_reached(bool all) noexcept BERTH_REQUIRES(mutex_);

  std::size_t first_step(std::uint64_t offset) const noexcept { return offset / step_; }
  std::size_t last_step(std::uint64_t offset, std::size_t bytes) const noexcept { return (offset + bytes - 1) / step_; }

  // Where the block goes: below `offset`, or `offset` if it stays. `pack` allows a place that is not mapped yet.
  std::uint64_t destination(std::uint64_t offset, std::size_t bytes, std::size_t alignment, bool pack) const
      BERTH_REQUIRES(mutex_);
  bool is_mapped(std::uint64_t from, std::uint64_t to) const noexcept BERTH_REQUIRES(mutex_);
  // The bytes that live blocks leave free in their steps.
  std::size_t loose_bytes() const noexcept BERTH_REQUIRES(mutex_);
  // Takes the memory between the new place and the old one, so that the block has both. A failed call changes nothing.
  Result<void> start(const Move& move) BERTH_REQUIRES(mutex_);
  // Gives up the old place, or the new one if the block has not moved.
  void settle(const Move& move, bool moved) noexcept BERTH_REQUIRES(mutex_);
  // The steps of the new place end here: those of the old one are mapped and counted already.
  std::size_t end_of_new_steps(const Move& move) const noexcept {
    return std::min(first_step(move.from), last_step(move.to, move.bytes) + 1);
  }
  // The timepoint after which a released block is idle: a move that failed may have left copies on its way.
  Timepoint after_unfinished_move(std::uint64_t offset, Timepoint last_use) noexcept;
  void rename(std::uint64_t from, std::uint64_t to) noexcept BERTH_REQUIRES(mutex_);
  // Copies what is not copied yet, and waits for it.
  Result<void> transfer(Move& move);
  Result<Queue*> moving_queue();
  // The next block that could move, with a reference to its owner; none at the end of the memory or of the budget.
  std::optional<Candidate> next_candidate(DefragmentPass& pass) BERTH_REQUIRES(pass_mutex_);
  void try_move(DefragmentPass& pass, const Candidate& candidate);
  std::byte* host_at(std::uint64_t offset) const noexcept {
    return space_->is_host() ? reinterpret_cast<std::byte*>(base_ + offset) : nullptr;
  }

  const DevicePtr device_;
  const std::unique_ptr<AddressSpace> space_;
  const std::uint64_t base_;
  const std::size_t bytes_;
  const std::size_t step_;
  Mutex pass_mutex_;                                        // held during one pass
  std::uint64_t cursor_ BERTH_GUARDED_BY(pass_mutex_) = 0;  // where the next pass goes on
  std::size_t loose_ BERTH_GUARDED_BY(pass_mutex_) = 0;     // what this pass can gain at most
  Mutex queue_mutex_;                                       // held while the queue below is made
  QueuePtr queue_ BERTH_GUARDED_BY(queue_mutex_);           // of moves alone: nobody records into it meanwhile
  mutable Mutex mutex_;
  OffsetAllocator offsets_ BERTH_GUARDED_BY(mutex_);
  std::vector<Step> steps_ BERTH_GUARDED_BY(mutex_);
  std::vector<Pending> pending_ BERTH_GUARDED_BY(mutex_);
  // Live blocks that were handed on while work of their timeline still used them, by offset.
  std::map<std::uint64_t, Timepoint> handed_on_ BERTH_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Owned> owned_ BERTH_GUARDED_BY(mutex_);  // blocks of buffers, by offset
  std::size_t mapped_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t used_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t pending_bytes_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t owned_bytes_ BERTH_GUARDED_BY(mutex_) = 0;
  std::atomic<std::size_t> unfinished_{0};  // entries of owned_ with an unfinished move
};

}  // namespace berth::internal
