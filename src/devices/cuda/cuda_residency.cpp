#include "devices/cuda/cuda_residency.h"

#include "devices/cuda/cuda_device.h"

namespace berth::internal::cuda {
namespace {

bool is_managed(const Block& block) noexcept {
  return block.has(BlockFlags::kHostPointer);
}

}  // namespace

Result<void> CudaResidency::put(std::span<const Block> blocks, std::vector<Refused>& refused) {
  const Driver& driver = device_.driver();
  const bool can = driver.cuMemPrefetchAsync != nullptr && driver.cuMemAdvise != nullptr;
  const Location place{kLocationDevice, device_.ordinal()};
  std::optional<ContextScope> scope;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    if (!is_managed(block)) continue;
    if (!can) {
      refused.push_back({i, "the CUDA driver is older than 12.2 and does not support advice"});
      continue;
    }
    if (!scope) scope.emplace(device_);
    // A failed advice is no reason to stop the work; the work will report a lost device.
    Status status = scope->status();
    if (status == kSuccess) status = driver.cuMemAdvise(block.handle, block.bytes, kAdvisePreferredLocation, place);
    if (status == kSuccess)
      status = device_.at_home(
          [&](Stream home) { return driver.cuMemPrefetchAsync(block.handle, block.bytes, place, 0, home); });
    if (status != kSuccess) refused.push_back({i, "the driver says " + driver.words(status)});
  }
  return {};
}

void CudaResidency::take(const Block& block) noexcept {
  const Driver& driver = device_.driver();
  if (!is_managed(block) || driver.cuMemAdvise == nullptr) return;
  const ContextScope scope(device_);
  if (scope.status() != kSuccess) return;  // it was only advice
  const Location place{kLocationDevice, device_.ordinal()};
  device_.record(driver.cuMemAdvise(block.handle, block.bytes, kUnadvisePreferredLocation, place), "cuMemAdvise");
}

}  // namespace berth::internal::cuda
