#include "devices/cuda/cuda_address_space.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/try.h"
#include "devices/cuda/cuda_capture.h"
#include "devices/cuda/cuda_device.h"

namespace berth::internal::cuda {
namespace {

// One handle for each frame, since the driver maps handles as a whole.
class CudaFrames final : public Frames {
 public:
  CudaFrames(CudaDevice& device, std::size_t frame_bytes) : cuda_(device), bytes(frame_bytes) {}
  ~CudaFrames() override {
    const ContextScope scope(cuda_, 2);
    if (!cuda_.record(scope)) return;
    const UnsafeCalls unsafe(cuda_.driver());
    // Memory that is mapped stays until it is unmapped.
    for (const MemoryHandle handle : handles)
      if (cuda_.driver().cuMemRelease(handle) != kSuccess)
        cuda_.record(cuda_.driver().cuMemRelease(handle), "cuMemRelease");
  }

 private:
  CudaDevice& cuda_;

 public:
  const std::size_t bytes;  // of one frame
  std::vector<MemoryHandle> handles;
};

class CudaAddressSpace final : public AddressSpace {
 public:
  CudaAddressSpace(CudaDevice& device, std::size_t granularity) : cuda_(device), granularity_(granularity) {}

  std::size_t granularity() const noexcept override { return granularity_; }
  bool is_host() const noexcept override { return false; }

  Result<std::uint64_t> reserve(std::size_t bytes) override {
    BERTH_TRY(check_no_capture("reserving addresses", Layer::kDevice));
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
    const UnsafeCalls unsafe(driver());
    cuda_.record(driver().cuMemAddressFree(address, bytes), "cuMemAddressFree");
  }

  Result<void> map(std::uint64_t address, std::size_t bytes) override {
    BERTH_TRY(check_no_capture("mapping memory", Layer::kDevice));
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    const AllocationProperties properties = properties_of(cuda_);
    MemoryHandle handle = 0;
    if (const Status status = driver().cuMemCreate(&handle, bytes, &properties, 0); status != kSuccess)
      return driver().error(status, "cuMemCreate");
    return map_handle(address, bytes, handle);
  }

  Result<void> unmap(std::uint64_t address, std::size_t bytes) override {
    // Tried twice, because a caller that cannot report errors would otherwise lose the memory.
    const ContextScope scope(cuda_, 2);
    BERTH_TRY(scope.check());
    // Also waits for work that was recorded but never submitted, which has no timepoint.
    Status status = cuda_.settle_all();
    if (status != kSuccess) status = cuda_.settle_all();
    if (status != kSuccess) return driver().error(status, "cuCtxSynchronize");
    const UnsafeCalls unsafe(driver());
    status = driver().cuMemUnmap(address, bytes);
    if (status != kSuccess) return driver().error(status, "cuMemUnmap");
    return {};
  }

  Result<std::unique_ptr<Frames>> make_frames(std::size_t bytes, std::size_t count) override {
    BERTH_TRY(check_no_capture("allocating memory", Layer::kDevice));
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    const AllocationProperties properties = properties_of(cuda_);
    auto frames = std::make_unique<CudaFrames>(cuda_, bytes);
    frames->handles.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      MemoryHandle handle = 0;
      if (const Status status = driver().cuMemCreate(&handle, bytes, &properties, 0); status != kSuccess)
        return driver().error(status, "cuMemCreate");
      frames->handles.push_back(handle);
    }
    return std::unique_ptr<Frames>(std::move(frames));
  }

  Result<void> map_frames(std::uint64_t address, const Frames& frames, std::size_t first, std::size_t count) override {
    BERTH_TRY(check_no_capture("mapping memory", Layer::kDevice));
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    const auto& from = static_cast<const CudaFrames&>(frames);
    std::size_t mapped = 0;
    Status status = kSuccess;
    const char* call = "cuMemMap";
    for (; mapped < count; ++mapped) {
      status = driver().cuMemMap(address + mapped * from.bytes, from.bytes, 0, from.handles[first + mapped], 0);
      if (status != kSuccess) break;
    }
    if (status == kSuccess) {
      status = allow_access(address, count * from.bytes);
      call = "cuMemSetAccess";
    }
    if (status == kSuccess) return {};
    // Nothing has used these addresses, so nothing is waited for.
    if (mapped != 0) cuda_.record(driver().cuMemUnmap(address, mapped * from.bytes), "cuMemUnmap");
    return driver().error(status, call);
  }

  Result<void> unmap_frames(std::uint64_t address, const Frames& frames, std::size_t count) override {
    return unmap(address, static_cast<const CudaFrames&>(frames).bytes * count);
  }

  Result<SharedMapping> map_shareable(std::size_t bytes) override {
    BERTH_TRY(check_no_capture("mapping memory", Layer::kDevice));
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    const AllocationProperties properties = properties_of(cuda_, kHandleDescriptor);
    MemoryHandle handle = 0;
    if (const Status status = driver().cuMemCreate(&handle, bytes, &properties, 0); status != kSuccess)
      return driver().error(status, "cuMemCreate");
    int descriptor = -1;
    const Status status = driver().cuMemExportToShareableHandle(&descriptor, handle, kHandleDescriptor, 0);
    Descriptor exported(status == kSuccess ? descriptor : -1);
    if (status != kSuccess) {
      release(handle);
      return driver().error(status, "cuMemExportToShareableHandle");
    }
    BERTH_TRY_ASSIGN(const std::uint64_t address, map_anywhere(bytes, handle));
    return SharedMapping{.address = address, .bytes = bytes, .descriptor = std::move(exported)};
  }

  // The driver has one kind of descriptor; that a buffer was shared for reading is checked by its importer.
  Result<Descriptor> copy_descriptor(const Descriptor& descriptor, SharedAccess) override {
    Descriptor copy(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (copy.get() < 0)
      return Error::with_text(
          Code::kIo, Layer::kDevice,
          std::string("the system failed to copy the descriptor of shared memory: ") + std::strerror(errno));
    return copy;
  }

  Result<SharedMapping> map_shared(int descriptor, std::size_t bytes, SharedAccess) override {
    if (fcntl(descriptor, F_GETFD) < 0)
      return Error(Code::kInvalidArgument, Layer::kDevice, "{} is not an open descriptor", descriptor);
    // The driver does not tell the size of imported memory.
    if (bytes == 0 || bytes % granularity_ != 0)
      return Error(Code::kSizeMismatch, Layer::kDevice,
                   "shared memory of {} bytes to import, and CUDA memory comes in multiples of {}: pass the "
                   "memory_bytes that Buffer::share returned",
                   bytes, granularity_);
    BERTH_TRY(check_no_capture("mapping memory", Layer::kDevice));
    const ContextScope scope(cuda_);
    BERTH_TRY(scope.check());
    MemoryHandle handle = 0;
    const Status status = driver().cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor)), kHandleDescriptor);
    if (status == kErrorInvalidValue || status == kErrorInvalidHandle)
      return Error(Code::kInvalidData, Layer::kDevice,
                   "the descriptor {} is not memory that CUDA exported: share it with Buffer::share", descriptor);
    if (status != kSuccess) return driver().error(status, "cuMemImportFromShareableHandle");
    BERTH_TRY_ASSIGN(const std::uint64_t address, map_anywhere(bytes, handle));
    return SharedMapping{.address = address, .bytes = bytes, .descriptor = {}};
  }

  void unmap_shared(std::uint64_t address, std::size_t bytes) noexcept override {
    // Addresses whose memory the driver failed to unmap stay reserved.
    if (const auto unmapped = unmap(address, bytes); unmapped)
      unreserve(address, bytes);
    else
      cuda_.record_error(unmapped.error());
  }

  static AllocationProperties properties_of(const CudaDevice& device, HandleType handles = kHandleNone) {
    return {.type = kAllocationPinned,
            .requested_handle_types = handles,
            .location = {kLocationDevice, device.ordinal()},
            .win32_metadata = nullptr,
            .flags = {}};
  }

 private:
  // Maps memory for reading and writing, and releases its handle whether that fails or not. Requires: a context.
  Result<void> map_handle(std::uint64_t address, std::size_t bytes, MemoryHandle handle) {
    Status status = driver().cuMemMap(address, bytes, 0, handle, 0);
    release(handle);
    if (status != kSuccess) return driver().error(status, "cuMemMap");
    status = allow_access(address, bytes);
    if (status == kSuccess) return {};
    cuda_.record(driver().cuMemUnmap(address, bytes), "cuMemUnmap");
    return driver().error(status, "cuMemSetAccess");
  }

  Status allow_access(std::uint64_t address, std::size_t bytes) {
    const AccessDescription access{{kLocationDevice, cuda_.ordinal()}, kAccessReadWrite};
    return driver().cuMemSetAccess(address, bytes, &access, 1);
  }

  // The same at addresses of its own.
  Result<std::uint64_t> map_anywhere(std::size_t bytes, MemoryHandle handle) {
    const auto address = reserve(bytes);
    if (!address) {
      release(handle);
      return address.error();
    }
    if (auto mapped = map_handle(*address, bytes, handle); !mapped) {
      unreserve(*address, bytes);
      return mapped.error();
    }
    return *address;
  }

  // Mapped memory stays alive without its handle and is freed with the mapping, but only if the handle was released;
  // the release is therefore tried twice.
  void release(MemoryHandle handle) noexcept {
    if (driver().cuMemRelease(handle) != kSuccess) cuda_.record(driver().cuMemRelease(handle), "cuMemRelease");
  }

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
