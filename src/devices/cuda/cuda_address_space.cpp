#include "devices/cuda/cuda_address_space.h"

#include "base/try.h"
#include "devices/cuda/cuda_device.h"

namespace berth::internal::cuda {
namespace {

class CudaAddressSpace final : public AddressSpace {
 public:
  CudaAddressSpace(CudaDevice& device, std::size_t granularity) : cuda_(device), granularity_(granularity) {}

  std::size_t granularity() const noexcept override { return granularity_; }
  bool is_host() const noexcept override { return false; }

  Result<std::uint64_t> reserve(std::size_t bytes) override {
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    Address address = 0;
    if (const Status status = driver().cuMemAddressReserve(&address, bytes, 0, 0, 0); status != kSuccess)
      return driver().error(status, "cuMemAddressReserve");
    return std::uint64_t{address};
  }

  void unreserve(std::uint64_t address, std::size_t bytes) noexcept override {
    const ContextScope scope(cuda_, 2);
    if (!cuda_.record(scope)) return;
    cuda_.record(driver().cuMemAddressFree(address, bytes), "cuMemAddressFree");
  }

  Result<void> map(std::uint64_t address, std::size_t bytes) override {
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    const AllocationProperties properties = properties_of(cuda_);
    MemoryHandle handle = 0;
    if (const Status status = driver().cuMemCreate(&handle, bytes, &properties, 0); status != kSuccess)
      return driver().error(status, "cuMemCreate");
    Status status = driver().cuMemMap(address, bytes, 0, handle, 0);
    // Mapped memory stays alive without its handle and is freed with the mapping, but only if the handle was released;
    // the release is therefore tried twice.
    if (driver().cuMemRelease(handle) != kSuccess) cuda_.record(driver().cuMemRelease(handle), "cuMemRelease");
    if (status != kSuccess) return driver().error(status, "cuMemMap");
    const AccessDescription access{{kLocationDevice, cuda_.ordinal()}, kAccessReadWrite};
    status = driver().cuMemSetAccess(address, bytes, &access, 1);
    if (status == kSuccess) return {};
    cuda_.record(driver().cuMemUnmap(address, bytes), "cuMemUnmap");
    return driver().error(status, "cuMemSetAccess");
  }

  Result<void> unmap(std::uint64_t address, std::size_t bytes) override {
    // Tried twice, because a caller that cannot report errors would otherwise lose the memory.
    const ContextScope scope(cuda_, 2);
    BERTH_TRY(scope.check());
    // Also waits for work that was recorded but never submitted, which has no timepoint.
    Status status = driver().cuCtxSynchronize();
    if (status != kSuccess) status = driver().cuCtxSynchronize();
    if (status != kSuccess) return driver().error(status, "cuCtxSynchronize");
    status = driver().cuMemUnmap(address, bytes);
    if (status != kSuccess) return driver().error(status, "cuMemUnmap");
    return {};
  }

  static AllocationProperties properties_of(const CudaDevice& device) {
    return {.type = kAllocationPinned,
            .requested_handle_types = kHandleNone,
            .location = {kLocationDevice, device.ordinal()},
            .win32_metadata = nullptr,
            .flags = {}};
  }

 private:
  const Driver& driver() const noexcept { return cuda_.driver(); }

  CudaDevice& cuda_;
  const std::size_t granularity_;
};

}  // namespace

Result<std::unique_ptr<AddressSpace>> make_address_space(CudaDevice& cuda) {
  if (!cuda.info().virtual_memory)
    return Error(Code::kUnsupported, Layer::kDevice,
                 "CUDA:{} has no virtual memory management, which this allocator needs", cuda.ordinal());
  const ContextScope scope(cuda);
  BERTH_TRY(scope.check());
  const AllocationProperties properties = CudaAddressSpace::properties_of(cuda);
  std::size_t granularity = 0;
  const Status status = cuda.driver().cuMemGetAllocationGranularity(&granularity, &properties, kGranularityRecommended);
  if (status != kSuccess) return cuda.driver().error(status, "cuMemGetAllocationGranularity");
  return std::unique_ptr<AddressSpace>(std::make_unique<CudaAddressSpace>(cuda, granularity));
}

}  // namespace berth::internal::cuda
