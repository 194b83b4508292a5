#include "berth/alloc/limit.h"

#include <utility>

#include "berth/memory/out_of_memory.h"
#include "base/atomic_peak.h"

namespace berth {

Limit::Limit(AllocatorPtr inner, std::size_t bytes, PressureCallback on_pressure)
    : AllocatorAdaptor(std::move(inner)), limit_(bytes), on_pressure_(std::move(on_pressure)) {}

std::shared_ptr<Limit> make_limit(AllocatorPtr inner, std::size_t bytes, Limit::PressureCallback on_pressure) {
  return std::make_shared<Limit>(std::move(inner), bytes, std::move(on_pressure));
}

bool Limit::charge(std::size_t bytes) noexcept {
  // A loop and not a plain add: what does not fit must not make another thread's request fail meanwhile.
  std::size_t live = live_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ || live > limit_ - bytes) return false;
  } while (!live_bytes_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
  return true;
}

Result<Block> Limit::allocate(const BlockSpec& spec) {
  if (!charge(spec.bytes) && !(on_pressure_ && on_pressure_(spec) && charge(spec.bytes)))
    return out_of_memory(OutOfMemory::Cause::kBudget, *this, spec, limit_);
  auto block = inner()->allocate(spec);
  if (!block) {
    live_bytes_.fetch_sub(spec.bytes, std::memory_order_relaxed);
    return block;
  }
  if (block->bytes > spec.bytes && !charge(block->bytes - spec.bytes)) {
    const std::size_t given = block->bytes;
    live_bytes_.fetch_sub(spec.bytes, std::memory_order_relaxed);
    inner()->release(*block, {});
    return out_of_memory(OutOfMemory::Cause::kBudget, *this, spec, limit_, given);
  }
  if (block->bytes == 0) return block;
  live_count_.fetch_add(1, std::memory_order_relaxed);
  raise_to(peak_bytes_, live_bytes_.load(std::memory_order_relaxed));
  labels_.add(block->label, block->bytes);
  return block;
}

void Limit::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes > 0) {
    labels_.remove(block.label, block.bytes);
    live_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
    live_count_.fetch_sub(1, std::memory_order_relaxed);
  }
  inner()->release(block, last_use);
}

void Limit::explain(OutOfMemory& report) const {
  if (report.live_count == 0) {
    report.live_bytes = live_bytes();
    report.live_count = live_count_.load(std::memory_order_relaxed);
    report.peak_bytes = peak_bytes();
  }
  if (report.holders.empty()) report.holders = labels_.holders();
  inner()->explain(report);
}

}  // namespace berth
