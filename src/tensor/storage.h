// One allocation, shared by handles. It is allocated once: `state` changes from lazy to busy to ready; readers load it
// once, and threads that lose the race sleep on it. Reference-counted; the last drop returns the block together with
// the timepoint of its last use. Storage objects are recycled, a few per thread, because creating one would otherwise
// cost more than a pool hit.
#pragma once

#include <atomic>
#include <source_location>

#include "berth/memory/allocator.h"
#include "berth/memory/block.h"
#include "memory/movable.h"
#include "tensor/live_storages.h"

namespace berth::internal {

class Storage final : public MovableOwner {
 public:
  static Storage* make_lazy(AllocatorPtr allocator, const BlockSpec& spec, std::source_location site);
  static Storage* make_ready(AllocatorPtr allocator, const Block& block, std::source_location site);

  void retain() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept override;
  bool try_retain() noexcept override;
  bool is_unique() const noexcept { return references_.load(std::memory_order_acquire) == 1; }

  Result<void> ensure_allocated();
  bool is_ready() const noexcept { return state_.load(std::memory_order_acquire) == State::kReady; }

  // Requires: is_ready(), and if the block may move, a hold (movable.h) for its handle and its host pointer.
  const Block& block() const noexcept override { return block_; }
  // Where the bytes begin behind the handle and the host pointer. Not 0 only if the block may move.
  std::uint64_t start() const noexcept { return start_; }
  // True if the block may move while nobody holds its address. Requires: is_ready().
  bool may_move() const noexcept { return mover_ != nullptr; }
  void set_place(const Place& place) noexcept override {
    block_.handle = place.handle;
    block_.host = place.host;
    start_ = place.start;
  }
  // The flags of the block, or those that it will have.
  BlockFlags flags() const noexcept { return is_ready() ? block_.flags : allocator_->expected_flags(spec_); }
  const BlockSpec& spec() const noexcept { return spec_; }
  const AllocatorPtr& allocator() const noexcept { return allocator_; }
  std::size_t bytes() const noexcept { return spec_.bytes; }
  Name label() const noexcept { return spec_.label; }
  Name tag() const noexcept { return spec_.tag; }
  std::uint64_t id() const noexcept { return id_; }
  const std::source_location& site() const noexcept { return site_; }

  static void* operator new(std::size_t bytes);
  static void operator delete(void* memory) noexcept;

  LiveLink live{};

 private:
  enum class State : std::uint32_t { kLazy, kBusy, kReady };

  Storage(AllocatorPtr allocator, const BlockSpec& spec, std::source_location site);
  ~Storage();

  std::atomic<std::uint32_t> references_{1};
  std::atomic<State> state_{State::kLazy};
  Block block_;
  std::uint64_t start_ = 0;
  BlockSpec spec_;
  AllocatorPtr allocator_;
  std::uint64_t id_;
  std::source_location site_;
};

// Handles and storages take ids from one process-wide counter that never repeats.
std::uint64_t next_id() noexcept;

}  // namespace berth::internal
