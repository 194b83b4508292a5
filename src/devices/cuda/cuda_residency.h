// Residency on CUDA. Device memory is always resident, so only managed memory is affected: at a commit, the GPU becomes
// its preferred location and it is prefetched there. Each device owns one set; any thread may call.
#pragma once

#include <span>
#include <vector>

#include "berth/memory/residency.h"

namespace berth::internal::cuda {

class CudaDevice;

class CudaResidency final : public Residency {
 public:
  explicit CudaResidency(CudaDevice& device) : device_(device) {}

 protected:
  Result<void> put(std::span<const Block> blocks, std::vector<Refused>& refused) override;
  void take(const Block& block) noexcept override;

 private:
  CudaDevice& device_;
};

}  // namespace berth::internal::cuda
