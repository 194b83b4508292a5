#include "devices/cuda/cuda_residency.h"

#include <algorithm>

#include "devices/cuda/cuda_device.h"

namespace berth::cuda {

void CudaResidency::do_add(const Block& block) noexcept {
  if (!block.has(BlockFlags::kHostPointer)) return;
  const std::lock_guard lock(mutex_);
  try {
    pending_.push_back(block);
  } catch (...) {
    // It is only advice: the memory comes to the GPU page by page instead.
  }
}

void CudaResidency::do_remove(const Block& block) noexcept {
  if (!block.has(BlockFlags::kHostPointer)) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Block& one) { return one.handle == block.handle; });
}

Result<void> CudaResidency::do_commit() {
  const Driver& driver = device_.driver();
  // Held throughout, so that no block is freed between being taken from the list and being advised.
  const std::lock_guard lock(mutex_);
  if (pending_.empty() || driver.cuMemPrefetchAsync == nullptr || driver.cuMemAdvise == nullptr) {
    pending_.clear();
    return {};
  }
  const ContextScope scope(driver, device_.context());
  const Location place{kLocationDevice, device_.ordinal()};
  while (!pending_.empty()) {
    const Block& block = pending_.back();
    Status status = driver.cuMemAdvise(block.handle, block.bytes, kAdvisePreferredLocation, place);
    if (status != kSuccess) return driver.error(status, "cuMemAdvise");
    status = device_.at_home(
        [&](Stream home) { return driver.cuMemPrefetchAsync(block.handle, block.bytes, place, 0, home); });
    if (status != kSuccess) return driver.error(status, "cuMemPrefetchAsync");
    pending_.pop_back();
  }
  return {};
}

}  // namespace berth::cuda
