// Residency on CUDA. Device memory is always in place, so only managed memory has something to gain: at a commit its
// preferred place becomes the GPU and it is prefetched there. One set a device; any thread may call.
#pragma once

#include <mutex>
#include <vector>

#include "berth/residency.h"

namespace berth::cuda {

class CudaDevice;

class CudaResidency final : public Residency {
 public:
  explicit CudaResidency(CudaDevice& device) : device_(device) {}

 protected:
  void do_add(const Block& block) noexcept override;
  void do_remove(const Block& block) noexcept override;
  Result<void> do_commit() override;

 private:
  CudaDevice& device_;
  std::mutex mutex_;
  std::vector<Block> pending_;  // managed blocks added since the last commit
};

}  // namespace berth::cuda
