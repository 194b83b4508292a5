#include "berth/alloc/statistics.h"

#include <bit>
#include <utility>

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
  accounting_.reserve(block->bytes);
  accounting_.add(block->label, block->bytes);
  total_bytes_.fetch_add(block->bytes, std::memory_order_relaxed);
  sizes_[static_cast<std::size_t>(std::bit_width(block->bytes)) - 1].fetch_add(1, std::memory_order_relaxed);
  return block;
}

void Statistics::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes > 0) accounting_.remove(block.label, block.bytes);
  inner()->release(block, last_use);
}

StatisticsCounters Statistics::counters() const {
  StatisticsCounters result{accounting_.counters()};
  result.failures = failures_.load(std::memory_order_relaxed);
  result.total_bytes = total_bytes_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < sizes_.size(); ++i) result.sizes[i] = sizes_[i].load(std::memory_order_relaxed);
  result.holders = accounting_.holders();
  return result;
}

void Statistics::explain(OutOfMemory& report) const {
  accounting_.explain(report);
  inner()->explain(report);
}

}  // namespace berth
