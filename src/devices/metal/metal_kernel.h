// A kernel on METAL: a compute pipeline made from Metal source or from a compiled metallib, distinguished by the first
// four bytes. Windows are bound at their byte offsets as buffers 0, 1, ...; the constants are the next buffer.
// Immutable, so any thread may launch it; keeps its device alive.
#pragma once

#include <memory>
#include <span>

#include "berth/memory/kernel.h"
#include "devices/metal/metal_device.h"

namespace berth::internal::metal {

// Requires of both: inside an AutoreleaseScope.
Result<Owned<MTL::Library>> load_library(MTL::Device& device, std::span<const std::byte> code);
Result<Owned<MTL::ComputePipelineState>> make_pipeline(MTL::Device& device, MTL::Library& library,
                                                       const std::string& entry);

class MetalKernelBody final : public KernelBody {
 public:
  // kInvalidArgument with the compiler's message; kNotFound if the library has no such function.
  static Result<Kernel> load(std::shared_ptr<MetalDevice> device, const KernelSource& source);

  const MetalDevice& device() const noexcept { return *device_; }
  const MTL::ComputePipelineState& pipeline() const noexcept { return *pipeline_; }

  // kInvalidArgument for more than 31 buffers, more than 4096 bytes of constants, or a group larger than the pipeline
  // allows.
  Result<void> check(std::span<const KernelArgument> arguments, const Grid& grid,
                     std::span<const std::byte> constants) const;
  // Requires: check() was passed, and the encoder has the pipeline.
  void launch(MTL::ComputeCommandEncoder& encoder, std::span<const KernelArgument> arguments, const Grid& grid,
              std::span<const std::byte> constants) const;

 private:
  MetalKernelBody(std::shared_ptr<MetalDevice> device, Owned<MTL::ComputePipelineState> pipeline)
      : device_(std::move(device)), pipeline_(std::move(pipeline)) {
    most_threads_ = pipeline_->maxTotalThreadsPerThreadgroup();
  }

  std::shared_ptr<MetalDevice> device_;
  Owned<MTL::ComputePipelineState> pipeline_;
  std::size_t most_threads_;
};

}  // namespace berth::internal::metal
