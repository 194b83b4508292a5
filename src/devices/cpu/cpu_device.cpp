#include "devices/cpu/cpu_device.h"

#include <unistd.h>

#include <limits>
#include <thread>

#include "base/os/system_pages.h"
#include "berth/memory/out_of_memory.h"
#include "devices/cpu/cpu_address_space.h"
#include "devices/cpu/cpu_queue.h"
#include "devices/cpu/cpu_residency.h"
#include "devices/host/host_memory.h"
#include "memory/poison.h"

namespace berth::internal::cpu {
namespace {

constexpr BlockFlags kHostMemory = BlockFlags::kHostPointer | BlockFlags::kHostTransfer;

// In debug builds every block is followed by canaries.
constexpr std::size_t kGuardBytes = kCanaries ? kCanaryBytes : 0;

DeviceLimits host_limits() {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  return {.total_bytes = pages * page_bytes(), .unified_memory = true};
}

class CpuDevice final : public Device {
 public:
  CpuDevice() : Device("CPU", host_limits()) {}

  std::string description() const override {
    return "host memory, " + std::to_string(std::thread::hardware_concurrency()) + " threads";
  }

  Result<Kernel> make_kernel(const KernelSource& source) override {
    if (!source.host)
      return Error(Code::kInvalidArgument, Layer::kDevice, "CPU kernels are host callables: set KernelSource::host");
    return Kernel(std::make_shared<const HostKernelBody>(source.host));
  }

  Result<std::unique_ptr<AddressSpace>> make_address_space() override { return cpu::make_address_space(); }

  Result<Block> import_block(const ForeignMemory& memory) override {
    if (memory.address == 0 && memory.bytes > 0)
      return Error(Code::kInvalidArgument, Layer::kDevice, "{} bytes to import at a null address", memory.bytes);
    return Block{
        .handle = memory.address,
        .host = reinterpret_cast<std::byte*>(memory.address),
        .bytes = memory.bytes,
        .flags = kHostMemory | BlockFlags::kForeign | (memory.read_only ? BlockFlags::kReadOnly : BlockFlags::kNone),
        .usage = Usage::kAll};
  }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    const bool too_large = spec.bytes > std::numeric_limits<std::size_t>::max() - kGuardBytes;
    void* memory = too_large ? nullptr : allocate_host(spec.bytes + kGuardBytes, spec.alignment, spec.zero);
    if (memory == nullptr) return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec);
    write_canary(static_cast<std::byte*>(memory) + spec.bytes, kGuardBytes);
    return Block{.handle = reinterpret_cast<std::uint64_t>(memory),
                 .host = static_cast<std::byte*>(memory),
                 .bytes = spec.bytes,
                 .flags = kHostMemory};
  }

  void free_block(const Block& block, Timepoint) noexcept override {
    check_canary(block.host + block.bytes, kGuardBytes, block.label);
    // Unmapped memory cannot be read any more; memory returned to malloc can, so it is overwritten.
    if (rounded_host_bytes(block.bytes + kGuardBytes) < kMappedBytes) overwrite_released(block.host, block.bytes);
    free_host(block.host, block.bytes + kGuardBytes);
  }

  std::unique_ptr<Residency> make_residency() override { return std::make_unique<CpuResidency>(); }

  Result<std::unique_ptr<Queue>> create_queue() override { return std::unique_ptr<Queue>(new CpuQueue(*this)); }
};

}  // namespace

Result<DevicePtr> open(const std::string& ordinal) {
  if (ordinal != "0")
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                            "CPU:" + ordinal + " does not exist: there is one CPU device, \"CPU\"");
  return share_device(std::make_unique<CpuDevice>());
}

}  // namespace berth::internal::cpu
