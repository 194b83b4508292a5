#include "berth/alloc/dry_run.h"

#include <bit>
#include <utility>

#include "berth/memory/device.h"

namespace berth {

std::shared_ptr<DryRun> make_dry_run(AllocatorPtr like) {
  return std::make_shared<DryRun>(std::move(like));
}

Result<Block> DryRun::allocate(const BlockSpec& spec) {
  if (!std::has_single_bit(spec.alignment))
    return Error(Code::kInvalidArgument, Layer::kAllocator, "an alignment of {} is not a power of two", spec.alignment);
  Block block{.bytes = spec.bytes, .label = spec.label, .usage = Usage{}};
  if (spec.bytes == 0) return block;
  block.handle = next_.fetch_add(1, std::memory_order_relaxed);
  accounting_.reserve(spec.bytes);
  accounting_.add(block.label, block.bytes);
  return block;
}

void DryRun::release(const Block& block, Timepoint) noexcept {
  if (block.bytes == 0) return;
  accounting_.remove(block.label, block.bytes);
}

void DryRun::explain(OutOfMemory& report) const {
  accounting_.explain(report);
  if (report.device.empty()) report.device = inner()->name();
}

}  // namespace berth
