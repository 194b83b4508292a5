// What one layer of an allocator stack counts: live bytes, their peak, who holds them, and the limit they must stay
// within. Device, Limit, Statistics and DryRun each own one. Counting an allocation takes a few relaxed atomic
// operations. Any thread may call; each counter is exact, and a snapshot is consistent when no other thread is calling.
//
//   reserve(bytes) -> true    the bytes count as live and nobody else can take them
//   add(label, bytes)         the block exists: counted by label and in the peak
//   cancel(bytes)             there is no block after all
//   remove(label, bytes)      the block is gone
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "berth/memory/label_counters.h"

namespace berth {

struct LiveCounters {
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t peak_bytes = 0;
  std::uint64_t allocations = 0;
  std::uint64_t releases = 0;
};

class Accounting {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  explicit Accounting(std::size_t limit = kNoLimit) noexcept : limit_(limit) {}

  std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  // Applies to later reservations. Bytes that are already live stay live.
  void set_limit(std::size_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }

  // Counts `bytes` as live if that keeps within the limit.
  bool reserve(std::size_t bytes) noexcept;
  // Counts `bytes` as live whatever the limit says: for memory that a driver gave beyond the request.
  void add_reserved(std::size_t bytes) noexcept { live_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void cancel(std::size_t bytes) noexcept { live_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Requires: `bytes` were reserved.
  void add(Name label, std::size_t bytes) noexcept;
  void remove(Name label, std::size_t bytes) noexcept;

  std::size_t live_bytes() const noexcept { return live_bytes_.load(std::memory_order_relaxed); }
  LiveCounters counters() const noexcept;

  // Fills in what the layers above have not already reported: they know what is live better, because this layer also
  // counts what they cache.
  void explain(OutOfMemory& report) const;
  std::vector<OutOfMemory::Holder> holders() const { return labels_.holders(); }

 private:
  std::atomic<std::size_t> limit_;
  std::atomic<std::size_t> live_bytes_{0}, live_count_{0}, peak_bytes_{0};
  std::atomic<std::uint64_t> allocations_{0}, releases_{0};
  LabelCounters labels_;
};

}  // namespace berth
