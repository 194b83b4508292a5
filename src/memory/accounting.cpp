#include "berth/memory/accounting.h"

#include "base/atomic_peak.h"

namespace berth {

using namespace internal;

bool Accounting::reserve(std::size_t bytes) noexcept {
  const std::size_t limit = limit_.load(std::memory_order_relaxed);
  if (limit == kNoLimit) {
    live_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  // A compare-and-swap loop instead of an addition that is undone: a request that does not fit must not make a smaller
  // request of another thread fail meanwhile.
  std::size_t live = live_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit || live > limit - bytes) return false;
  } while (!live_bytes_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
  return true;
}

void Accounting::add(Name label, std::size_t bytes) noexcept {
  raise_to(peak_bytes_, live_bytes_.load(std::memory_order_relaxed));
  live_count_.fetch_add(1, std::memory_order_relaxed);
  allocations_.fetch_add(1, std::memory_order_relaxed);
  labels_.add(label, bytes);
}

void Accounting::remove(Name label, std::size_t bytes) noexcept {
  labels_.remove(label, bytes);
  live_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  live_count_.fetch_sub(1, std::memory_order_relaxed);
  releases_.fetch_add(1, std::memory_order_relaxed);
}

LiveCounters Accounting::counters() const noexcept {
  return {.live_bytes = live_bytes_.load(std::memory_order_relaxed),
          .live_count = live_count_.load(std::memory_order_relaxed),
          .peak_bytes = peak_bytes_.load(std::memory_order_relaxed),
          .allocations = allocations_.load(std::memory_order_relaxed),
          .releases = releases_.load(std::memory_order_relaxed)};
}

void Accounting::explain(OutOfMemory& report) const {
  if (report.live_count == 0) {
    const LiveCounters now = counters();
    report.live_bytes = now.live_bytes;
    report.live_count = now.live_count;
    report.peak_bytes = now.peak_bytes;
  }
  if (report.holders.empty()) report.holders = labels_.holders();
}

}  // namespace berth
