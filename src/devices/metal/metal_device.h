// The METAL device: one GPU by its ordinal, the system's default first, through metal-cpp. On a GPU with unified
// memory, a block is a shared MTLBuffer that host and GPU can access, unless the caller requests HostAccess::kNone,
// which gives private memory. Shared by std::shared_ptr; any thread may call; Metal objects are released exactly once,
// with their last block, queue or kernel.
#pragma once

#include <memory>
#include <string>

#include "berth/base/mutex.h"
#include "berth/devices/metal_info.h"
#include "berth/memory/device.h"
#include "devices/metal/metal_context.h"
#include "devices/metal/metal_residency.h"

namespace berth::internal::metal {

// A block's handle is its MTLBuffer.
inline std::uint64_t handle_of(const MTL::Buffer* buffer) noexcept {
  return reinterpret_cast<std::uint64_t>(buffer);
}
inline MTL::Buffer* buffer_of(const Block& block) noexcept {
  return reinterpret_cast<MTL::Buffer*>(block.handle);
}

// Berth's own pipelines, for copies and fills that blits cannot do.
struct ByteKernels {
  Owned<MTL::ComputePipelineState> copy;
  Owned<MTL::ComputePipelineState> fill;
};

class MetalDevice final : public Device {
 public:
  // kDeviceUnavailable if Metal has no GPU with this ordinal; otherwise Metal's error.
  static Result<DevicePtr> open_ordinal(std::size_t ordinal);

  ~MetalDevice() override;

  std::string description() const override;
  Result<Kernel> make_kernel(const KernelSource& source) override;
  DlpackPlace dlpack_place(const Block& block) const noexcept override {
    return {.device_type = 8, .device_id = ordinal(), .data = block.handle, .is_object = true};
  }
  Result<Block> import_block(const ForeignMemory& memory) override;
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override {
    return is_shared(spec) ? kSharedFlags : BlockFlags::kNone;
  }
  void* native() noexcept override { return device_.get(); }
  void destroy() noexcept override;
  // Metal keeps memory that was removed from the residency set until the set is committed: this commits it now.
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  MTL::Device& native_device() const noexcept { return *device_; }
  StagingPool& staging() noexcept { return staging_; }
  MetalInfo info() const;
  // The set to attach to a new queue; null if there is none.
  const MTL::ResidencySet* residency_set() noexcept;

  // Compiled at the first call. Metal's error.
  Result<ByteKernels> byte_kernels();

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override;
  void free_block(const Block& block, Timepoint last_use) noexcept override;
  Result<std::unique_ptr<Queue>> create_queue() override;
  std::unique_ptr<Residency> make_residency() override { return std::make_unique<MetalResidency>(native_device()); }

 private:
  MetalDevice(Owned<MTL::Device> device, std::size_t ordinal, std::string name, DeviceLimits limits);
  static constexpr BlockFlags kSharedFlags = BlockFlags::kHostPointer | BlockFlags::kHostTransfer;

  // True if a block for `spec` is in memory that the host shares.
  bool is_shared(const BlockSpec& spec) const noexcept {
    return spec.host == HostAccess::kRequired || (spec.host == HostAccess::kPreferred && limits().unified_memory);
  }
  void stop() noexcept;
  MTL::Buffer* new_shared(const BlockSpec& spec);
  Result<void> zero_private(const MTL::Buffer& buffer, std::size_t bytes);

  const Owned<MTL::Device> device_;
  const std::string description_;
  StagingPool staging_;
  Mutex kernels_mutex_;
  ByteKernels kernels_ BERTH_GUARDED_BY(kernels_mutex_);
  Mutex home_mutex_;
  Owned<MTL::CommandQueue> home_ BERTH_GUARDED_BY(home_mutex_);  // zeroes private memory; has no residency set
};

}  // namespace berth::internal::metal
