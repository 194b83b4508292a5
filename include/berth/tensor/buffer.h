// A Buffer is a handle: a typed, shaped window of a storage. A storage is one allocation on one device. A handle, its
// copies and its views share the storage; it is freed after the last of them is destroyed and the last queue that used
// it is done. A handle is a value of 112 bytes; copying and destroying handles is thread-safe. Access to the bytes is
// not locked: the scheduler or the caller must ensure that two threads do not write the same bytes.
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
#include <string>

#include "berth/base/result.h"
#include "berth/memory/allocator.h"
#include "berth/memory/device.h"
#include "berth/memory/shared_memory.h"
#include "berth/tensor/dtype.h"
#include "berth/tensor/shape.h"

namespace berth {

namespace internal {
class Storage;
}  // namespace internal

struct BufferOptions {
  Name label{};                // shown in reports
  Name tag{};                  // buffers of one tag are counted, trimmed and freed together
  std::size_t alignment = 64;  // at least this; a power of two
  Usage usage = Usage::kDefault;
  HostAccess host = HostAccess::kPreferred;
  bool zero = false;                  // otherwise the contents of new memory are undefined
  TimelineId on = TimelineId::kNone;  // timeline of the queue that will use it first, if known: see BlockSpec::on
};

class Buffer {
 public:
  // An empty handle: size 0, id 0, no storage. A moved-from handle is empty too. Everything may be called on it except
  // as_raw_ptr(); what needs memory fails.
  Buffer() = default;
  Buffer(const Buffer& other) noexcept;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(const Buffer& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // A buffer that allocates its memory on first use. kInvalidArgument for a shape that overflows or is not a whole
  // number of blocks of the dtype, or an alignment that is not a power of two.
  static Result<Buffer> lazy(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options = {},
                             std::source_location site = std::source_location::current());

  // A buffer whose memory is allocated now. Fails like lazy() and like the allocator.
  static Result<Buffer> allocate(AllocatorPtr allocator, DType dtype, const Shape& shape,
                                 const BufferOptions& options = {},
                                 std::source_location site = std::source_location::current());

  // A buffer over memory that another library allocated, without a copy. memory.release is called once: when the last
  // handle is destroyed and recorded work that uses the memory is done, or when this call fails. If that work is not
  // submitted, it is submitted then. One memory may be imported several times, also memory of Berth itself.
  // kSizeMismatch if the shape needs more bytes than memory.bytes; kInvalidArgument without a device; the errors of the
  // device.
  static Result<Buffer> import(DevicePtr device, ForeignMemory memory, DType dtype, const Shape& shape,
                               const BufferOptions& options = {});

  // A buffer over memory that another process shares, without a copy. The memory lives as long as one process uses it;
  // the descriptor may be closed after this call. Without SharedAccess::kReadWrite the buffer is read-only. On CPU the
  // memory is refused if the other process could make it smaller, because an access would then end this process.
  // kInvalidArgument for a shape that overflows, a descriptor that is not open, or without a device; kInvalidData for a
  // descriptor that is no shared memory; kSizeMismatch if the shape does not fit behind memory.offset; kReadOnly to
  // write what was shared for reading; kUnsupported on devices without shared memory; the driver's error.
  static Result<Buffer> import_shared(const DevicePtr& device, const SharedMemory& memory, DType dtype,
                                      const Shape& shape, SharedAccess access = SharedAccess::kRead,
                                      const BufferOptions& options = {});

  // Shares the storage with another process, which imports it with import_shared: docs/sharing.md. Allocates a lazy
  // buffer. The descriptor reaches the whole storage, also if this is a view. kUnsupported unless the memory comes from
  // make_shareable(); kNotAllocated for an empty handle or zero bytes; kReadOnly to share read-only memory for writing;
  // kIo if the process has too many descriptors.
  Result<SharedMemory> share(SharedAccess access = SharedAccess::kRead) const;

  // Allocates the memory of a lazy buffer. If several threads call at once, one allocates and the others wait for it. A
  // failed allocation leaves the buffer lazy.
  Result<void> ensure_allocated() const;
  bool is_allocated() const noexcept;

  // --- Identity ---
  // Unique to this handle and its copies; a view has its own. Never reused; 0 for an empty handle.
  std::uint64_t id() const noexcept { return id_; }
  // Equal for a buffer and all its views, never reused: safe as a hash key.
  std::uint64_t storage_id() const noexcept;
  // True if no other handle shares the storage, so an operation may reuse it in place.
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
  // For an empty handle: a device named "NONE", which has no memory.
  Device& device() const noexcept;
  // For a lazy buffer, whether its memory will be read-only.
  bool is_read_only() const noexcept;
  bool is_foreign() const noexcept;
  // True if the host can access the bytes in place: as_host_bytes() of an allocated buffer fails at most for a
  // truncated file. A lazy buffer asks its allocator. Allocates nothing.
  bool cpu_accessible() const noexcept;

  // --- Views: no copy, no allocation, a new id ---
  // Bytes [offset, offset + bytes) of this window. Keeps the dtype, with one axis, if the bytes are whole elements;
  // otherwise the view has dtype u8. kInvalidView outside this window. Zero bytes are allowed.
  Result<Buffer> view(std::size_t offset, std::size_t bytes) const;
  // The same with another dtype and shape. Also kInvalidArgument if they have no valid size.
  Result<Buffer> view(std::size_t offset, DType dtype, const Shape& shape) const;
  // A view of `elements` elements of this dtype, starting at byte `offset` of this window.
  Result<Buffer> slice_view(std::size_t offset, std::size_t elements) const;
  // The same window in another shape. kSizeMismatch unless the element counts agree.
  Result<Buffer> with_shape(const Shape& shape) const;

  // --- Host access: zero copy ---
  // These functions fail with kNotAllocated (const functions only: the mutable ones allocate), kNotCpuAccessible,
  // kTypeMismatch, kMisaligned, kReadOnly (mutable ones), or kIo (a mapped file was truncated). A call that can be
  // refused without memory leaves a lazy buffer lazy. Requires: no work in flight on a queue uses the bytes.
  // A pointer given out here keeps the memory where it is for good: see GrowableMemory::defragment. A window() keeps it
  // only while the window exists.
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
  // The value of the only element. kSizeMismatch if there is not exactly one.
  template <Element T>
  Result<T> item() const;

  // --- Copies: complete on return ---
  // A copy comes after all work that was recorded before it, on any queue, and uses one of the buffers. If that work is
  // not submitted, the copy submits what its queue has recorded so far. It fails with the error of such work. Requires:
  // the calling thread is not inside a function that a queue calls to record.
  // kSizeMismatch unless the sizes are equal; kReadOnly; kInvalidUsage; kIo. copyin and copy_from allocate a lazy
  // target after all other checks; copyout and copy_from of an unallocated source fail with kNotAllocated.
  Result<void> copyin(std::span<const std::byte> source) const;
  Result<void> copyout(std::span<std::byte> target) const;
  // Copies from a buffer on any device. Overlapping windows of one storage behave as memmove.
  Result<void> copy_from(const Buffer& source) const;

  // Waits for all work on the device.
  Result<void> synchronize() const;

  // --- For kernels and foreign encoders ---
  // The host address of the first byte of the window; null if the host cannot access it. Stops the program with a
  // message if the buffer is not allocated.
  void* as_raw_ptr() const noexcept;
  // The device's handle of the whole storage (host address, CUdeviceptr, MTL::Buffer*, WGPUBuffer), for use with
  // byte_offset(). 0 if not allocated, and if the object of the driver holds other buffers too (growable memory on
  // WEBGPU and METAL): window() has the object and the offset in it.
  std::uint64_t native_handle() const noexcept;
  // The window as an argument for queues. Allocates a lazy buffer. The addresses in it are valid while it exists. The
  // driver's error if the memory was being moved and cannot be restored.
  Result<Window> window() const;

 private:
  Buffer(internal::Storage* storage, std::size_t offset, std::size_t bytes, DType dtype, const Shape& shape) noexcept;
  static Result<Buffer> make(AllocatorPtr allocator, DType dtype, const Shape& shape, const BufferOptions& options,
                             std::source_location site);
  Result<void> allocate_to_write(DType wanted, std::size_t alignment) const;
  Result<void> check_source() const;
  Result<void> check_target() const;
  Result<void> check_host(bool writes) const;
  Result<void> check_flags(BlockFlags flags, bool writes) const;
  Result<void> check_type(DType wanted, std::size_t alignment) const;
  Result<void> check_type(DType wanted, std::uintptr_t address, std::size_t alignment) const;
  template <class T>
  Result<std::span<T>> typed(bool writes) const;
  // The address of the window, which then never moves. Requires: is_allocated().
  Result<std::byte*> give_address() const;
  Result<void> read_item(DType wanted, std::size_t alignment, std::span<std::byte> target) const;

  internal::Storage* storage_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t id_ = 0;
  Shape shape_;
  DType dtype_ = DType::kU8;
};

template <class T>
Result<std::span<T>> Buffer::typed(bool writes) const {
  using Stored = std::remove_const_t<T>;
  if (writes)
    if (auto ok = allocate_to_write(*dtype_of<Stored>, alignof(Stored)); !ok) return ok.error();
  if (auto ok = check_host(writes); !ok) return ok.error();
  if (auto ok = check_type(*dtype_of<Stored>, alignof(Stored)); !ok) return ok.error();
  if (bytes_ == 0) return std::span<T>();
  const auto address = give_address();
  if (!address) return address.error();
  return std::span<T>(reinterpret_cast<T*>(*address), bytes_ / sizeof(T));
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
  T value{};
  if (auto ok = read_item(*dtype_of<T>, alignof(T), std::as_writable_bytes(std::span(&value, 1))); !ok)
    return ok.error();
  return value;
}

// One line without the contents: "f32[2, 3] on CPU, 24 B, lazy".
std::string to_string(const Buffer& buffer);

// Maps bytes [offset, offset + bytes) of a file as a buffer on the DISK device. Nothing is read until it is accessed.
// kIo if the file cannot be opened, kInvalidView past its end.
Result<Buffer> map_file(std::string_view path, std::size_t offset, std::size_t bytes);
// The whole file.
Result<Buffer> map_file(std::string_view path);

}  // namespace berth
