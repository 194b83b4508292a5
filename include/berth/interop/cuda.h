// CUDA interoperability: information about a GPU, a scope that keeps its context current, and two typed owners of its
// memory. CudaSlice<T> owns the memory; GpuBuffer<T> contains a CudaSlice<T> and nothing else, so that a bridge to
// another framework can use a reference to one as a reference to the other. Both are move-only, may be moved between
// threads, and keep the device and its context alive. Memory is freed in stream order after its last use. An error in a
// destructor is recorded on the device; read it with take_cuda_error.
//
// The driver is opened at run time: this header needs no CUDA toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "berth/base/result.h"
#include "berth/devices/cuda_info.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"

namespace berth {

// kInvalidArgument if the device is not a CUDA device.
Result<CudaInfo> cuda_info(Device& device);

// The bytes that the driver can still give to this process. kInvalidArgument if the device is not a CUDA device; the
// driver's error.
Result<std::size_t> cuda_free_bytes(Device& device);

// Returns the first error of a destructor or a free since the last call, if any. Empty for other devices.
std::optional<Error> take_cuda_error(Device& device);

// Keeps the context of a device current on this thread during its lifetime, so that the calls inside need not set it
// each time. The destructor restores the previous context (a thread that had none keeps the context of CUDA:0). Belongs
// to its thread. Requires: nothing else changes the current context of the thread meanwhile; scopes end in reverse
// order.
class CudaScope {
 public:
  // kInvalidArgument if the device is not a CUDA device; the driver's error.
  static Result<CudaScope> enter(DevicePtr device);
  CudaScope(CudaScope&& other) noexcept = default;
  CudaScope& operator=(CudaScope&&) = delete;
  ~CudaScope();

 private:
  struct State;
  struct Leave {
    void operator()(State* state) const noexcept;
  };
  explicit CudaScope(std::unique_ptr<State, Leave> state) : state_(std::move(state)) {}
  std::unique_ptr<State, Leave> state_;
};

// A type that the GPU can hold: plain bytes, copied without constructors.
template <class T>
concept DeviceValue = std::is_trivially_copyable_v<T> && !std::is_const_v<T>;

namespace internal::gpu {
Result<Buffer> allocate(AllocatorPtr allocator, DType dtype, std::size_t elements, bool zero,
                        std::span<const std::byte> contents);
Result<void> read(const Buffer& buffer, const Device& device, std::span<std::byte> bytes);
// Device and access; allocates nothing.
Result<void> check_cuda(const Buffer& buffer);
// Allocates a lazy buffer, unless its window is misaligned. 0 for a buffer of zero bytes.
Result<unsigned long long> address(const Buffer& buffer, std::size_t alignment);

template <class T>
constexpr DType stored_as() {
  if constexpr (dtype_of<T>.has_value())
    return *dtype_of<T>;
  else
    return DType::kU8;
}
// Bytes of `length` values, or a size that no memory has, which Buffer refuses, if that overflows.
template <class T>
constexpr std::size_t bytes_of(std::size_t length) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  return length > kMost / sizeof(T) ? kMost : length * sizeof(T);
}
template <class T>
constexpr std::size_t units(std::size_t length) {
  return dtype_of<T>.has_value() ? length : bytes_of<T>(length);
}
}  // namespace internal::gpu

// `size()` values of T in the memory of one GPU. The first member is the device address, so a pointer to a slice can be
// passed to a kernel launch as a pointer parameter.
template <DeviceValue T>
class CudaSlice {
 public:
  CudaSlice() = default;
  CudaSlice(CudaSlice&& other) noexcept
      : pointer_(std::exchange(other.pointer_, 0)),
        length_(std::exchange(other.length_, 0)),
        buffer_(std::move(other.buffer_)) {}
  CudaSlice& operator=(CudaSlice&& other) noexcept {
    CudaSlice moved(std::move(other));
    std::swap(pointer_, moved.pointer_);
    std::swap(length_, moved.length_);
    std::swap(buffer_, moved.buffer_);
    return *this;
  }
  CudaSlice(const CudaSlice&) = delete;
  CudaSlice& operator=(const CudaSlice&) = delete;
  ~CudaSlice() = default;

  // Takes ownership of memory at `pointer` that another library allocated. `release` frees it and is called once, also
  // on failure. kInvalidArgument if the memory does not belong to this GPU, or the length overflows; kMisaligned.
  static Result<CudaSlice> adopt(DevicePtr device, unsigned long long pointer, std::size_t length,
                                 std::function<void()> release = {}) {
    auto buffer =
        Buffer::import(std::move(device),
                       {.address = pointer, .bytes = internal::gpu::bytes_of<T>(length), .release = std::move(release)},
                       internal::gpu::stored_as<T>(), {internal::gpu::units<T>(length)});
    if (!buffer) return buffer.error();
    return from_buffer(*std::move(buffer));
  }

  // The window of a buffer on a GPU, without a copy. Other handles continue to share the bytes. kTypeMismatch for
  // another element type, kSizeMismatch if the size is not a multiple of T, kMisaligned if the window does not start at
  // a multiple of alignof(T), kReadOnly for read-only memory, kInvalidArgument for another device. A lazy buffer is
  // allocated if none of these applies.
  static Result<CudaSlice> from_buffer(Buffer buffer) {
    if (auto ok = internal::gpu::check_cuda(buffer); !ok) return ok.error();
    if (dtype_of<T>.has_value() && buffer.dtype() != internal::gpu::stored_as<T>())
      return Error::with_text(Code::kTypeMismatch, Layer::kBuffer,
                              "the buffer holds " + std::string(to_string(buffer.dtype())) +
                                  " and a slice of another type was asked for: use view(0, dtype, shape) first");
    if (buffer.size() % sizeof(T) != 0)
      return Error(Code::kSizeMismatch, Layer::kBuffer, "{} bytes are not whole values of {} bytes", buffer.size(),
                   sizeof(T));
    auto pointer = internal::gpu::address(buffer, alignof(T));
    if (!pointer) return pointer.error();
    CudaSlice slice;
    slice.pointer_ = *pointer;
    slice.length_ = buffer.size() / sizeof(T);
    slice.buffer_ = std::move(buffer);
    return slice;
  }

  // The same memory as a Buffer, without a copy; with dtype u8 if T is not a dtype.
  Buffer into_buffer() && {
    pointer_ = 0;
    length_ = 0;
    return std::move(buffer_);
  }
  const Buffer& buffer() const noexcept { return buffer_; }

  unsigned long long pointer() const noexcept { return pointer_; }  // CUdeviceptr; 0 when empty
  std::size_t size() const noexcept { return length_; }
  std::size_t size_bytes() const noexcept { return length_ * sizeof(T); }

 private:
  unsigned long long pointer_ = 0;
  std::size_t length_ = 0;
  Buffer buffer_;  // owns the memory
};

template <DeviceValue T>
class GpuBuffer {
 public:
  GpuBuffer() = default;
  GpuBuffer(GpuBuffer&&) noexcept = default;
  GpuBuffer& operator=(GpuBuffer&&) noexcept = default;
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;
  ~GpuBuffer() = default;

  // New memory with these contents. The copy is put on the default queue of the device; `host` may be reused on return.
  // kOutOfMemory; kInvalidArgument if the allocator is not on a CUDA device; the driver's error. Zero length calls no
  // driver.
  static Result<GpuBuffer> alloc_from(AllocatorPtr allocator, std::span<const T> host) {
    return alloc(std::move(allocator), host.size(), false, std::as_bytes(host));
  }
  static Result<GpuBuffer> alloc_zeros(AllocatorPtr allocator, std::size_t length) {
    return alloc(std::move(allocator), length, true);
  }
  static Result<GpuBuffer> alloc_uninit(AllocatorPtr allocator, std::size_t length) {
    return alloc(std::move(allocator), length, false);
  }

  // Ownership moves; no copy, no driver call.
  static GpuBuffer from_slice(CudaSlice<T> slice) noexcept {
    GpuBuffer buffer;
    buffer.slice_ = std::move(slice);
    return buffer;
  }
  CudaSlice<T> into_slice() && noexcept { return std::move(slice_); }
  static Result<GpuBuffer> from_buffer(Buffer buffer) {
    auto slice = CudaSlice<T>::from_buffer(std::move(buffer));
    if (!slice) return slice.error();
    return from_slice(*std::move(slice));
  }
  Buffer into_buffer() && { return std::move(slice_).into_buffer(); }

  // The contents after all earlier work on the queue that last used the memory. Blocks. kInvalidArgument if the memory
  // is not on `device`, also if it is empty; the driver's error. A default-constructed or moved-from GpuBuffer has no
  // memory, so it is on no device. T needs no default constructor.
  Result<std::vector<T>> to_host(const Device& device) const {
    if constexpr (std::is_default_constructible_v<T> && !std::is_same_v<T, bool>) {
      std::vector<T> host(size());
      if (auto ok = internal::gpu::read(slice_.buffer(), device, std::as_writable_bytes(std::span(host))); !ok)
        return ok.error();
      return host;
    } else {
      // std::vector<bool> has no bytes to read into, and a vector cannot be made of values that have no default.
      using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
      const auto give_back = [n = size()](Stored* memory) { std::allocator<Stored>().deallocate(memory, n); };
      const std::unique_ptr<Stored, decltype(give_back)> host(std::allocator<Stored>().allocate(size()), give_back);
      const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(host.get()), size() * sizeof(Stored));
      if (auto ok = internal::gpu::read(slice_.buffer(), device, bytes); !ok) return ok.error();
      return std::vector<T>(std::make_move_iterator(host.get()), std::make_move_iterator(host.get() + size()));
    }
  }

  const CudaSlice<T>& slice() const noexcept { return slice_; }
  unsigned long long pointer() const noexcept { return slice_.pointer(); }
  std::size_t size() const noexcept { return slice_.size(); }
  bool empty() const noexcept { return size() == 0; }

 private:
  static Result<GpuBuffer> alloc(AllocatorPtr allocator, std::size_t length, bool zero,
                                 std::span<const std::byte> contents = {}) {
    auto buffer = internal::gpu::allocate(std::move(allocator), internal::gpu::stored_as<T>(),
                                          internal::gpu::units<T>(length), zero, contents);
    if (!buffer) return buffer.error();
    return from_buffer(*std::move(buffer));
  }

  CudaSlice<T> slice_;

  // Bridges cast between references to the two types, so no other member may be added.
  static_assert(std::is_standard_layout_v<CudaSlice<T>>);
};

// True if a reference to the slice can be used as a reference to the buffer.
template <class T>
inline constexpr bool is_transparent_over_slice =
    sizeof(GpuBuffer<T>) == sizeof(CudaSlice<T>) && alignof(GpuBuffer<T>) == alignof(CudaSlice<T>) &&
    std::is_standard_layout_v<GpuBuffer<T>>&& std::is_standard_layout_v<CudaSlice<T>>;
namespace internal::gpu {
struct Pair {
  float first;
  std::uint32_t second;
};
static_assert(is_transparent_over_slice<float> && is_transparent_over_slice<F16> &&
              is_transparent_over_slice<std::int8_t> && is_transparent_over_slice<std::uint32_t> &&
              is_transparent_over_slice<Pair>);
}  // namespace internal::gpu

}  // namespace berth
