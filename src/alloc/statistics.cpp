#include "berth/alloc/statistics.h"

#include <bit>
#include <utility>

#include "base/atomic_peak.h"

namespace berth {

std::shared_ptr<Statistics> make_statistics(AllocatorPtr inner) {
  return std::make_shared<Statistics>(std::move(inner));
}

Result<Block> Statistics::allocate(const BlockSpec& spec) {
  auto block = inner()->allocate(spec);
  if (!block) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
  if (block->bytes == 0) return block;
  const std::size_t live = live_bytes_.fetch_add(block->bytes, std::memory_order_relaxed) + block->bytes;
  raise_to(peak_bytes_, live);
  live_count_.fetch_add(1, std::memory_order_relaxed);
  allocations_.fetch_add(1, std::memory_order_relaxed);
  total_bytes_.fetch_add(block->bytes, std::memory_order_relaxed);
  sizes_[static_cast<std::size_t>(std::bit_width(block->bytes)) - 1].fetch_add(1, std::memory_order_relaxed);
  labels_.add(block->label, block->bytes);
  return block;
}

void Statistics::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes > 0) {
    labels_.remove(block.label, block.bytes);
    live_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
    live_count_.fetch_sub(1, std::memory_order_relaxed);
    releases_.fetch_add(1, std::memory_order_relaxed);
  }
  inner()->release(block, last_use);
}

StatisticsCounters Statistics::counters() const {
  StatisticsCounters result{.live_bytes = live_bytes_.load(std::memory_order_relaxed),
                         .live_count = live_count_.load(std::memory_order_relaxed),
                         .peak_bytes = peak_bytes_.load(std::memory_order_relaxed),
                         .allocations = allocations_.load(std::memory_order_relaxed),
                         .releases = releases_.load(std::memory_order_relaxed),
                         .failures = failures_.load(std::memory_order_relaxed),
                         .total_bytes = total_bytes_.load(std::memory_order_relaxed)};
  for (std::size_t i = 0; i < sizes_.size(); ++i) result.sizes[i] = sizes_[i].load(std::memory_order_relaxed);
  result.holders = labels_.holders();
  return result;
}

void Statistics::explain(OutOfMemory& report) const {
  if (report.live_count == 0) {
    report.live_bytes = live_bytes_.load(std::memory_order_relaxed);
    report.live_count = live_count_.load(std::memory_order_relaxed);
    report.peak_bytes = peak_bytes_.load(std::memory_order_relaxed);
  }
  if (report.holders.empty()) report.holders = labels_.holders();
  inner()->explain(report);
}

}  // namespace berth
