// A Buffer is a handle: a typed, shaped window of a storage. A storage is one allocation on one device; it is
// shared by a handle, its copies and its views, and freed after the last of them is gone and the last queue
// that used it is done. handles are values of 112 bytes, cheap to copy; copying and dropping them is
// thread-safe. Access to the bytes is not locked: that two threads do not write the same bytes is the
// scheduler's or caller's duty.
//
//   storage   |................ total_size() ................|
//   buffer    |................................................|   id 1, storage_id 1
//   view            |...... size() ......|                         id 2, storage_id 1
//                   ^ byte_offset()
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>

#include "berth/base/result.h"
#include "berth/memory/allocator.h"
#include "berth/memory/device.h"
#include "berth/tensor/dtype.h"
#include "berth/tensor/shape.h"

namespace berth {

class Storage;

struct BufferOptions {
  Name label{};                // shown in reports
  Name tag{};                  // counted, trimmed and freed together
  std::size_t alignment = 64;  // at least this; a power of two
  Usage usage = Usage::kDefault;
  HostAccess host = HostAccess::kPreferred;
  bool zero = false;                  // fresh memory is undefined unless asked
  TimelineId on = TimelineId::kNone;  // of the queue that will use it first, if known: see BlockSpec::on
};

class Buffer {
 public:
  // An empty handle: size 0, id 0, no device. Only assignment, copying and the observers are legal on it.
  Buffer() = default;
  Buffer(const Buffer& other) noexcept;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(const Buffer& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // A buffer that takes no memory until its first use. InvalidArgument for a shape that overflows or is not
  // whole blocks of the dtype, or an alignment that is not a power of two.
  static Result<Buffer> lazy(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options = {},
                             std::source_location site = std::source_location::current());

  // A buffer that has its memory now, or the allocator's error.
  static Result<Buffer> allocate(AllocatorPtr allocator, DType dtype, const Shape& shape,
                                 const BufferOptions& options = {},
                                 std::source_location site = std::source_location::current());

  // A buffer over somebody else's memory: no copy. memory.release is called once when the last handle goes, and
  // also when this call fails. SizeMismatch if the shape needs more bytes than there are.
  static Result<Buffer> import(DevicePtr device, ForeignMemory memory, DType dtype, const Shape& shape,
                               const BufferOptions& options = {});

  // Makes sure that there is memory. From many threads at once: one allocation is made, the others wait for it.
  // A failed allocation leaves the buffer lazy.
  Result<void> ensure_allocated() const;
  bool is_allocated() const noexcept;

  // --- Identity ---
  // Unique to this handle and its copies; a view has its own. Never reused; 0 for an empty handle.
  std::uint64_t id() const noexcept { return id_; }
  // Equal for a buffer and all its views, never reused: safe as a hash key.
  std::uint64_t storage_id() const noexcept;
  // No other handle shares the storage, so an operation may reuse it in place.
  bool is_unique() const noexcept;

  // --- Description ---
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  std::size_t size() const noexcept { return bytes_; }  // bytes of this window
  std::size_t total_size() const noexcept;              // bytes of the whole storage
  std::size_t byte_offset() const noexcept { return offset_; }
  std::size_t element_count() const noexcept;
  Name label() const noexcept;
  const AllocatorPtr& allocator() const noexcept;
  Device& device() const noexcept;
  bool is_read_only() const noexcept;  // false while not allocated
  bool is_foreign() const noexcept;

  // --- Views: no copy, no allocation, their own id ---
  // Bytes [offset, offset + bytes) of this window. Keeps the dtype, with one axis, where the bytes are whole
  // elements; else the view is of u8. InvalidView outside this window. Zero bytes are legal.
  Result<Buffer> view(std::size_t offset, std::size_t bytes) const;
  // The same, as `dtype` and `shape`. Also InvalidArgument if these do not make a size.
  Result<Buffer> view(std::size_t offset, DType dtype, const Shape& shape) const;
  // `elements` elements of this dtype from byte `offset` of this window.
  Result<Buffer> slice_view(std::size_t offset, std::size_t elements) const;
  // The same window in another shape. SizeMismatch unless the element counts agree.
  Result<Buffer> with_shape(const Shape& shape) const;

  // --- Host access: zero copy ---
  // One rule for all: NotAllocated (reads only: the mutable ones allocate), NotCpuAccessible, TypeMismatch,
  // Misaligned, ReadOnly (mutable ones), Io (a mapped file that shrank). Work in flight on a queue must be
  // waited for first.
  Result<std::span<const std::byte>> as_host_bytes() const;
  Result<std::span<std::byte>> as_host_bytes_mut() const;
  template <Element T>
  Result<std::span<const T>> as_slice() const;
  template <Element T>
  Result<std::span<T>> as_slice_mut() const;
  template <Element T>
  Result<ArrayView<const T>> as_array() const;
  template <Element T>
  Result<ArrayView<T>> as_array_mut() const;
  // The value of the only element. SizeMismatch if there is not exactly one.
  template <Element T>
  Result<T> item() const;

  // --- Copies: complete on return ---
  // SizeMismatch unless the sizes are equal; ReadOnly; Io. copyin and copy_from allocate a lazy target, and only
  // when nothing else is wrong; copyout and copy_from of an unallocated source give NotAllocated.
  Result<void> copyin(std::span<const std::byte> source) const;
  Result<void> copyout(std::span<std::byte> target) const;
  // From a buffer on any device; overlapping windows of one storage behave as memmove.
  Result<void> copy_from(const Buffer& source) const;

  // Waits for all work on the device.
  Result<void> synchronize() const;

  // --- For kernels and foreign encoders ---
  // The first byte of the window on the host. Stops the program with a message if the buffer is not allocated;
  // null where the host cannot reach it.
  void* as_raw_ptr() const noexcept;
  // The device's own handle of the whole storage (host address, CUdeviceptr, MTL::Buffer*, WGPUBuffer), to be
  // used with byte_offset(). Requires: allocated.
  std::uint64_t native_handle() const noexcept;
  // The window as queues take it. Allocates a lazy buffer.
  Result<Window> window() const;

 private:
  Buffer(Storage* storage, std::size_t offset, std::size_t bytes, DType dtype, const Shape& shape) noexcept;
  static Result<Buffer> make(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options,
                             std::source_location site);
  Result<void> check_host(bool writes) const;
  Result<void> check_type(DType wanted, std::size_t alignment) const;
  template <class T>
  Result<std::span<T>> typed(bool writes) const;

  Storage* storage_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t id_ = 0;
  Shape shape_;
  DType dtype_ = DType::kU8;
};

template <class T>
Result<std::span<T>> Buffer::typed(bool writes) const {
  if (auto ok = check_host(writes); !ok) return ok.error();
  using Stored = std::remove_const_t<T>;
  if (auto ok = check_type(*dtype_of<Stored>, alignof(Stored)); !ok) return ok.error();
  return std::span<T>(bytes_ == 0 ? nullptr : static_cast<T*>(as_raw_ptr()), bytes_ / sizeof(T));
}

template <Element T>
Result<std::span<const T>> Buffer::as_slice() const {
  return typed<const T>(false);
}

template <Element T>
Result<std::span<T>> Buffer::as_slice_mut() const {
  return typed<T>(true);
}

template <Element T>
Result<ArrayView<const T>> Buffer::as_array() const {
  auto slice = typed<const T>(false);
  if (!slice) return slice.error();
  return ArrayView<const T>(slice->data(), shape_);
}

template <Element T>
Result<ArrayView<T>> Buffer::as_array_mut() const {
  auto slice = typed<T>(true);
  if (!slice) return slice.error();
  return ArrayView<T>(slice->data(), shape_);
}

template <Element T>
Result<T> Buffer::item() const {
  auto slice = typed<const T>(false);
  if (!slice) return slice.error();
  if (slice->size() != 1)
    return Error(Code::kSizeMismatch, Layer::kBuffer, "item() needs exactly one element and there are {}",
                 slice->size());
  return (*slice)[0];
}

// A view of a file: bytes [offset, offset + bytes) of it on the DISK device, mapped and not read.
// Io if it cannot be opened, InvalidView past its end.
Result<Buffer> map_file(std::string_view path, std::size_t offset, std::size_t bytes);
// The whole file.
Result<Buffer> map_file(std::string_view path);

}  // namespace berth
