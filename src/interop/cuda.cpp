#include "berth/interop/cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "devices/cuda/cuda_device.h"

namespace berth {

using namespace internal;

namespace {

Result<cuda::CudaDevice*> as_cuda(Device& device) {
  if (typeid(device) != typeid(cuda::CudaDevice))
    return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                            fmt::format("{} is not a CUDA device; open one with device(\"CUDA:0\")", device.name()));
  return static_cast<cuda::CudaDevice*>(&device);
}

}  // namespace

Result<CudaInfo> cuda_info(Device& device) {
  BERTH_TRY_ASSIGN(const cuda::CudaDevice* const cuda, as_cuda(device));
  return cuda->info();
}

Result<std::size_t> cuda_free_bytes(Device& device) {
  BERTH_TRY_ASSIGN(cuda::CudaDevice* const cuda, as_cuda(device));
  const cuda::ContextScope scope(*cuda);
  BERTH_TRY(scope.check());
  std::size_t free = 0, total = 0;
  if (const cuda::Status status = cuda->driver().cuMemGetInfo(&free, &total); status != cuda::kSuccess)
    return cuda->driver().error(status, "cuMemGetInfo");
  return free;
}

std::optional<Error> take_cuda_error(Device& device) {
  const auto cuda = as_cuda(device);
  return cuda ? (*cuda)->take_error() : std::nullopt;
}

struct CudaScope::State {
  DevicePtr device;
  cuda::ContextScope scope;
};

void CudaScope::Leave::operator()(State* state) const noexcept {
  delete state;
}

CudaScope::~CudaScope() = default;

Result<CudaScope> CudaScope::enter(DevicePtr device) {
  if (device == nullptr)
    return Error(Code::kInvalidArgument, Layer::kDevice, "a scope needs a device; open one with device(\"CUDA:0\")");
  BERTH_TRY_ASSIGN(const cuda::CudaDevice* const cuda, as_cuda(*device));
  std::unique_ptr<State, Leave> state(new State{std::move(device), cuda::ContextScope(*cuda)});
  BERTH_TRY(state->scope.check());
  return CudaScope(std::move(state));
}

namespace internal::gpu {

Result<Buffer> allocate(AllocatorPtr allocator, DType dtype, std::size_t elements, bool zero,
                        std::span<const std::byte> contents) {
  if (allocator == nullptr) return Error(Code::kInvalidArgument, Layer::kBuffer, "a buffer needs an allocator");
  BERTH_TRY_ASSIGN(cuda::CudaDevice* const cuda, as_cuda(allocator->device()));
  if (elements == 0) return Buffer::allocate(std::move(allocator), dtype, {0});
  // The default queue writes and reads it first, so the memory is allocated on that queue's stream.
  BERTH_TRY_ASSIGN(Queue* const queue, cuda->default_queue());
  // One scope for both steps, where making the context current costs calls.
  const cuda::ContextScope scope(*cuda, cuda::ContextScope::Trust::kMemory);
  BERTH_TRY(scope.check());
  BERTH_TRY_ASSIGN(Buffer buffer,
                   Buffer::allocate(std::move(allocator), dtype, {elements}, {.zero = zero, .on = queue->timeline()}));
  if (contents.empty()) return buffer;
  BERTH_TRY_ASSIGN(const Window window, buffer.window());
  BERTH_TRY(queue->write(window, contents));
  return buffer;
}

Result<void> read(const Buffer& buffer, const Device& device, std::span<std::byte> bytes) {
  if (&buffer.device() != &device)
    return Error::with_text(Code::kInvalidArgument, Layer::kBuffer,
                            fmt::format("the buffer is on {}, not on {}", buffer.device().name(), device.name()));
  return bytes.empty() ? Result<void>() : buffer.copyout(bytes);
}

Result<void> check_cuda(const Buffer& buffer) {
  if (buffer.allocator() == nullptr)
    return Error(Code::kInvalidArgument, Layer::kBuffer, "an empty handle has no device memory");
  BERTH_TRY(as_cuda(buffer.device()));
  if (buffer.is_read_only())
    return Error(Code::kReadOnly, Layer::kBuffer,
                 "{} bytes of read-only memory cannot become a slice, which can be written: copy them first",
                 buffer.size());
  return {};
}

Result<unsigned long long> address(const Buffer& buffer, std::size_t alignment) {
  const auto misaligned = [alignment](std::uint64_t at) {
    return Error(Code::kMisaligned, Layer::kBuffer,
                 "the window starts {} bytes past a multiple of {}, which the element type needs: copy it out",
                 at % alignment, alignment);
  };
  // The driver aligns memory to 256 bytes, so the offset of a lazy buffer decides.
  if (!buffer.is_allocated() && buffer.size() > 0 && buffer.byte_offset() % std::min<std::size_t>(alignment, 256) != 0)
    return misaligned(buffer.byte_offset());
  BERTH_TRY(buffer.ensure_allocated());
  if (buffer.size() == 0) return 0ull;
  const unsigned long long at = buffer.native_handle() + buffer.byte_offset();
  if (at % alignment != 0) return misaligned(at);
  return at;
}

}  // namespace internal::gpu
}  // namespace berth
