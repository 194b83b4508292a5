#include "berth/alloc/dry_run.h"

#include <bit>
#include <utility>

#include "base/try.h"
#include "berth/memory/device.h"
#include "memory/check_alignment.h"

namespace berth {

using namespace internal;

std::shared_ptr<DryRun> make_dry_run(AllocatorPtr like) {
  return std::make_shared<DryRun>(std::move(like));
}

Result<Block> DryRun::allocate(const BlockSpec& spec) {
  BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
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
