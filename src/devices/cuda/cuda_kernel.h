// A kernel of a loaded PTX or cubin module. Unloaded with its last handle; keeps its device alive.
#pragma once

#include <string>
#include <vector>

#include "berth/memory/kernel.h"
#include "devices/cuda/cuda_device.h"

namespace berth::internal::cuda {

class CudaKernelBody final : public KernelBody {
 public:
  struct Parameter {
    std::size_t offset;
    std::size_t bytes;
  };

  static Result<Kernel> load(std::shared_ptr<CudaDevice> device, const KernelSource& source);
  ~CudaKernelBody() override;

  const CudaDevice& device() const noexcept { return *device_; }

  // Checks the arguments against the declaration of the kernel, then launches. Windows are the first parameters; the
  // constants are the others, laid out as a C struct of those parameters. kInvalidArgument with the numbers; the
  // driver's error.
  Result<void> launch(Stream stream, std::span<const KernelArgument> arguments, const Grid& grid,
                      std::span<const std::byte> constants) const;

 private:
  CudaKernelBody(std::shared_ptr<CudaDevice> device, Module module) : device_(std::move(device)), module_(module) {}

  std::shared_ptr<CudaDevice> device_;
  Module module_;
  Function function_ = nullptr;
  std::vector<Parameter> parameters_;
  bool parameters_known_ = false;  // unknown with drivers before CUDA 12.4
};

}  // namespace berth::internal::cuda
