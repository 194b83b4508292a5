// Residency on CUDA. Device memory is always in place, so only managed memory has something to gain: at a commit its
// preferred place becomes the GPU and it is prefetched there. One set a device; any thread may call.
#pragma once

#include <span>
#include <vector>

#include "berth/memory/residency.h"

namespace berth::cuda {

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

}  // namespace berth::cuda
