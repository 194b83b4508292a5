// The blocks that a Replay has from its pool, by address. Divided into parts with a lock each, so that threads that use
// the pool at the same time rarely meet. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "berth/memory/allocator.h"
#include "run/run_arena.h"
#include "run/spin_lock.h"

namespace berth::internal::replay {

// The run that a pooled block belongs to; null outside of a run.
struct PooledFor {
  RunArena* run = nullptr;
  std::uint64_t generation = 0;       // of that run
  std::uint64_t trace = 0;            // of that run
  std::uint32_t number = kNoRequest;  // in that trace
  bool beside = false;                // the run had a plan
};

class PooledBlocks {
 public:
  explicit PooledBlocks(AllocatorPtr pool) : pool_(std::move(pool)) {}
  ~PooledBlocks();
  PooledBlocks(const PooledBlocks&) = delete;
  PooledBlocks& operator=(const PooledBlocks&) = delete;

  // Null if the pool has no memory.
  void* allocate(std::uint64_t bytes, std::uint64_t alignment, const PooledFor& owner) noexcept;
  // Releases a block and tells whose it was. Nothing if there is none at this address.
  std::optional<PooledFor> release(std::uintptr_t address) noexcept;
  // The requested bytes of the block at this address; 0 if there is none.
  std::uint64_t size_of(std::uintptr_t address) const noexcept;

  // Calls `visit` with each live block's owner. Not for hot paths.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Part& part : parts_) {
      const ScopedLock guard(part.lock);
      for (const auto& [address, entry] : part.entries) visit(entry.owner);
    }
  }

  // Trims the pool.
  void trim() noexcept { pool_->trim(); }
  // Trims the pool to the most that was in use in the last period of the decay, if that is much less than in those
  // before; `periods` have ended since the last call. Returns the bytes that the pool gave back.
  std::uint64_t give_back(unsigned periods) noexcept;
  // Trims it to what is in use now.
  std::uint64_t give_back_all() noexcept;
  void count(ReplayCounters& counters) const noexcept;

 private:
  struct Entry {
    Block block;
    std::uint64_t bytes;
    PooledFor owner;
  };
  struct alignas(64) Part {
    mutable SpinLock lock;
    std::unordered_map<std::uintptr_t, Entry> entries BERTH_GUARDED_BY(lock);
  };
  static constexpr std::size_t kParts = 16;
  static std::size_t index(std::uintptr_t address) noexcept {
    return static_cast<std::size_t>((address >> 6) * 0x9e37'79b9'7f4a'7c15u >> 60);
  }

  const AllocatorPtr pool_;
  std::array<Part, kParts> parts_;
  std::atomic<std::uint64_t> bytes_{0}, peak_{0}, beside_{0}, beside_peak_{0};
  std::atomic<std::uint64_t> recent_{0};      // highest bytes_ in this period of the decay
  std::atomic<std::uint64_t> given_back_{0};  // by give_back()
  SpinLock period_lock_;
  std::uint64_t room_ BERTH_GUARDED_BY(period_lock_) = 0;  // the most that was in use since the last trim
};

}  // namespace berth::internal::replay
