#include "berth/alloc/dry_run.h"

#include <bit>
#include <utility>

#include "berth/memory/device.h"
#include "base/atomic_peak.h"

namespace berth {

std::shared_ptr<DryRun> make_dry_run(AllocatorPtr like) {
  return std::make_shared<DryRun>(std::move(like));
}

Result<Block> DryRun::allocate(const BlockSpec& spec) {
  if (!std::has_single_bit(spec.alignment))
    return Error(Code::kInvalidArgument, Layer::kAllocator, "an alignment of {} is not a power of two", spec.alignment);
  Block block{.bytes = spec.bytes, .label = spec.label.id(), .usage = Usage{}};
  if (spec.bytes == 0) return block;
  block.handle = next_.fetch_add(1, std::memory_order_relaxed);
  raise_to(peak_bytes_, live_bytes_.fetch_add(spec.bytes, std::memory_order_relaxed) + spec.bytes);
  live_count_.fetch_add(1, std::memory_order_relaxed);
  labels_.add(block.label, block.bytes);
  return block;
}

void DryRun::release(const Block& block, Timepoint) noexcept {
  if (block.bytes == 0) return;
  labels_.remove(block.label, block.bytes);
  live_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
  live_count_.fetch_sub(1, std::memory_order_relaxed);
}

void DryRun::explain(OutOfMemory& report) const {
  if (report.live_count == 0) {
    report.live_bytes = live_bytes();
    report.live_count = live_count();
    report.peak_bytes = peak_bytes();
  }
  if (report.holders.empty()) report.holders = labels_.holders();
  if (report.device.empty()) report.device = inner()->name();
}

}  // namespace berth
