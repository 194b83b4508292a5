// The counters of one layer of an allocator stack: live bytes, their peak, live bytes by label, and the limit on live
// bytes. Device, Limit, Statistics and DryRun each own one. Counting an allocation takes a few relaxed atomic
// operations. Any thread may call. Each counter is exact; a snapshot is consistent only if no other thread calls at the
// same time.
//
//   reserve(bytes) -> true    the bytes count as live; no other request can take them
//   add(label, bytes)         the block exists: it counts in its label and in the peak
//   cancel(bytes)             the allocation failed after reserve()
//   remove(label, bytes)      the block was freed
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "berth/memory/label_counters.h"

namespace berth {

struct LiveCounters {
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t peak_bytes = 0;
  std::uint64_t allocations = 0;
  std::uint64_t releases = 0;
};
std::string to_string(const LiveCounters& counters);

class Accounting {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  explicit Accounting(std::size_t limit = kNoLimit) noexcept : limit_(limit) {}

  std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  // Applies to later reservations. Live bytes are not affected.
  void set_limit(std::size_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }

  // Counts `bytes` as live and returns true, or returns false if that would exceed the limit.
  bool reserve(std::size_t bytes) noexcept;
  // Counts `bytes` as live regardless of the limit, for memory that a driver returned beyond the request.
  void add_reserved(std::size_t bytes) noexcept { live_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void cancel(std::size_t bytes) noexcept { live_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Requires: `bytes` were reserved.
  void add(Name label, std::size_t bytes) noexcept;
  void remove(Name label, std::size_t bytes) noexcept;

  std::size_t live_bytes() const noexcept { return live_bytes_.load(std::memory_order_relaxed); }
  LiveCounters counters() const noexcept;

  // Fills in the fields of `report` that no layer above has filled in. The layers above take precedence because this
  // layer also counts the blocks that they cache.
  void explain(OutOfMemory& report) const;
  std::vector<OutOfMemory::Holder> holders() const { return labels_.holders(); }

 private:
  std::atomic<std::size_t> limit_;
  std::atomic<std::size_t> live_bytes_{0}, live_count_{0}, peak_bytes_{0};
  std::atomic<std::uint64_t> allocations_{0}, releases_{0};
  LabelCounters labels_;
};

}  // namespace berth
