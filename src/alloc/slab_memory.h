// The implementation of GrowableMemory where memory is objects of the driver and not addresses (WEBGPU, METAL). Small
// buffers are parts of slabs, with offsets by two-level segregated fit in each; the others have an object of their own,
// which goes back to the device with them. So has every block that is not allocated for a buffer, because a Block alone
// cannot say where in an object it begins. Parts can move to other slabs; see defragment() in slab_defragment.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "berth/alloc/growable.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/base/mutex.h"
#include "memory/movable.h"

namespace berth::internal {

struct DefragmentPass;

class SlabMemory final : public GrowableMemory, private Mover {
 public:
  // Requires: neither size is zero.
  SlabMemory(DevicePtr device, std::size_t most_bytes, std::size_t slab_bytes);
  ~SlabMemory() override;

  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use) noexcept override;
  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "growable memory"; }
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override { return device_->expected_flags(spec); }
  std::size_t trim(std::size_t keep_bytes) noexcept override;
  void explain(OutOfMemory& report) const override;
  Mover* mover() noexcept override { return this; }

  GrowableCounters counters() const override;
  DefragmentResult defragment(const DefragmentOptions& options) override;

 private:
  struct Slab {
    std::uint64_t number;  // in order of creation
    Block block;
    HostAccess host;
    OffsetAllocator offsets;
    std::map<std::uint64_t, std::uint32_t> parts{};  // keys by offset
  };
  // A block on its way down in its slab. Pieces of at most `from - to` bytes are copied in order, so a piece never
  // overwrites one that is still to be copied: whatever fails, the first `done` bytes are in the new place and the
  // others in the old one.
  struct Slide {
    std::uint64_t from = 0, to = 0;
    std::size_t done = 0;
  };
  struct Part {
    Slab* slab = nullptr;  // null: the key is free
    std::uint64_t offset = 0;
    std::size_t bytes = 0;  // in whole granules
    std::size_t alignment = 0;
    MovableOwner* owner = nullptr;
    std::optional<Slide> unfinished{};
  };
  struct Pending {
    std::uint32_t key;
    Timepoint last_use;
  };
  // A place before the present one: memory that is taken already, or free memory directly before the block.
  struct Goal {
    Slab* slab;
    std::uint64_t offset;
    bool is_taken;
  };
  struct Candidate {
    MovableOwner* owner;
    std::uint32_t key;
    std::size_t bytes;
    bool unfinished;
    Goal goal;
  };

  Result<Block> allocate_movable(const BlockSpec& spec, std::uint64_t& start) override;
  bool enlist(const Block& block, std::size_t alignment, MovableOwner& owner) noexcept override;
  Result<void> complete(MovableOwner& owner) override;

  bool is_part(const Block& block) const noexcept BERTH_REQUIRES(mutex_);
  // Takes memory from the device within `most_bytes_`, and gives empty slabs back first if it is short.
  Result<Block> take_object(const BlockSpec& spec);
  // Adds a slab for requests like this one.
  Result<void> add_slab(const BlockSpec& spec);
  // The key of a new part in a slab that has room; none if no slab has.
  std::optional<std::uint32_t> take_part(const BlockSpec& spec) BERTH_REQUIRES(mutex_);
  void free_part(std::uint32_t key) noexcept BERTH_REQUIRES(mutex_);
  // Frees pending parts whose last use is reached.
  void free_reached() noexcept BERTH_REQUIRES(mutex_);
  // Gives empty slabs back until at most `keep_bytes` of them remain. Returns the bytes given back.
  std::size_t give_back_empty(std::size_t keep_bytes) noexcept BERTH_EXCLUDES(mutex_);

  // The next part that has a place before its own, with that place and a reference to its owner; none at the end of the
  // memory or of the budget.
  std::optional<Candidate> next_candidate(DefragmentPass& pass) BERTH_REQUIRES(pass_mutex_);
  std::optional<Goal> find_goal(const Part& part) BERTH_REQUIRES(mutex_);
  void give_up(const Goal& goal) noexcept BERTH_REQUIRES(mutex_);
  void try_move(DefragmentPass& pass, const Candidate& candidate);
  // The part is at `goal` from now on; its old place is free.
  void settle(std::uint32_t key, const Goal& goal) noexcept BERTH_REQUIRES(mutex_);
  // Copies and waits. After a failure nothing is on its way any more.
  Result<void> copy(const Block& from, std::uint64_t from_offset, const Block& to, std::uint64_t to_offset,
                    std::size_t bytes) BERTH_EXCLUDES(queue_mutex_);
  Result<void> copy_once(const Window& from, const Window& to) BERTH_REQUIRES(queue_mutex_);
  Result<void> carry_on(const Block& block, std::size_t bytes, Slide& slide);

  const DevicePtr device_;
  const std::size_t most_bytes_;
  const std::size_t slab_bytes_;
  const std::size_t granule_;
  Mutex pass_mutex_;  // held during one pass
  // Where the next pass goes on: the number of a slab and an offset in it.
  std::uint64_t cursor_slab_ BERTH_GUARDED_BY(pass_mutex_) = 0;
  std::uint64_t cursor_ BERTH_GUARDED_BY(pass_mutex_) = 0;
  Mutex queue_mutex_;                              // held while a block is copied
  QueuePtr queue_ BERTH_GUARDED_BY(queue_mutex_);  // of moves alone
  mutable Mutex mutex_;
  std::map<std::uint64_t, Slab> slabs_ BERTH_GUARDED_BY(mutex_);  // by number
  std::uint64_t last_number_ BERTH_GUARDED_BY(mutex_) = 0;
  std::vector<Part> parts_ BERTH_GUARDED_BY(mutex_);               // by key
  std::vector<std::uint32_t> free_keys_ BERTH_GUARDED_BY(mutex_);  // has room for every key
  std::vector<Pending> pending_ BERTH_GUARDED_BY(mutex_);
  std::size_t held_bytes_ BERTH_GUARDED_BY(mutex_) = 0;   // slabs and whole objects
  std::size_t part_bytes_ BERTH_GUARDED_BY(mutex_) = 0;   // in parts
  std::size_t whole_bytes_ BERTH_GUARDED_BY(mutex_) = 0;  // in objects of their own
  std::size_t whole_count_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t pending_bytes_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth::internal
