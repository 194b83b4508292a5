#include "berth/interop/dlpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "base/try.h"
#include "berth/memory/registry.h"
#include "memory/uses.h"

namespace berth::dlpack {

using namespace internal;

namespace {

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 64 && sizeof(ManagedTensorVersioned) == 80,
              "the layout of the DLPack ABI");

struct Row {
  DType dtype;
  Type type;
};
// The common types first, because the search is linear.
constexpr std::array kTypes = {
    Row{DType::kF32, {kFloat, 32, 1}},
    Row{DType::kBF16, {kBfloat, 16, 1}},
    Row{DType::kF16, {kFloat, 16, 1}},
    Row{DType::kI64, {kInt, 64, 1}},
    Row{DType::kI32, {kInt, 32, 1}},
    Row{DType::kU8, {kUInt, 8, 1}},
    Row{DType::kBool, {kBool, 8, 1}},
    Row{DType::kI8, {kInt, 8, 1}},
    Row{DType::kI16, {kInt, 16, 1}},
    Row{DType::kU16, {kUInt, 16, 1}},
    Row{DType::kU32, {kUInt, 32, 1}},
    Row{DType::kU64, {kUInt, 64, 1}},
    Row{DType::kF64, {kFloat, 64, 1}},
    Row{DType::kF8E4M3, {kFloat8E4M3FN, 8, 1}},
    Row{DType::kF8E5M2, {kFloat8E5M2, 8, 1}},
    Row{DType::kF8E4M3FNUZ, {kFloat8E4M3FNUZ, 8, 1}},
    Row{DType::kF8E5M2FNUZ, {kFloat8E5M2FNUZ, 8, 1}},
    Row{DType::kF8E8M0, {kFloat8E8M0FNU, 8, 1}},
    Row{DType::kF6E2M3, {kFloat6E2M3FN, 6, 1}},
    Row{DType::kF6E3M2, {kFloat6E3M2FN, 6, 1}},
    Row{DType::kF4E2M1, {kFloat4E2M1FN, 4, 1}},
    Row{DType::kC64, {kComplex, 64, 1}},
};

Result<DType> dtype_of_type(const Type& type) {
  for (const Row& row : kTypes)
    if (row.type.code == type.code && row.type.bits == type.bits && type.lanes == 1) return row.dtype;
  return Error(Code::kTypeMismatch, Layer::kInterop, "no dtype for the DLPack type with code {}, {} bits and {} lanes",
               type.code, type.bits, type.lanes);
}

// One allocation holds all that an exported tensor points to.
template <class Managed>
struct Exported {
  Managed managed;
  Buffer buffer;
  Window window;  // the memory does not move while the tensor exists
  std::array<std::int64_t, kMaxRank> shape;
  std::array<std::int64_t, kMaxRank> strides;

  static void release(Managed* self) {
    if (self != nullptr) delete static_cast<Exported*>(self->context);
  }
};

// What DLPack can express of a buffer, checked before a lazy one is allocated.
Result<Type> check_export(const Buffer& buffer) {
  for (const std::size_t extent : buffer.shape().extents())
    if (extent > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()))
      return Error(Code::kUnsupported, Layer::kInterop,
                   "an extent of {} does not fit the 63 bits of DLPack: reshape it", extent);
  return type_of(buffer.dtype());
}

template <class Managed>
Result<Managed*> export_as(const Buffer& buffer) {
  BERTH_TRY_ASSIGN(const Type type, check_export(buffer));
  BERTH_TRY_ASSIGN(const Window window, buffer.window());
  if (window.owner != nullptr) BERTH_TRY(internal::wait_for_uses(*window.owner));
  auto* const exported = new (std::nothrow) Exported<Managed>{{}, buffer, window, {}, {}};
  if (exported == nullptr)
    return Error(Code::kOutOfMemory, Layer::kInterop, "no memory for the description of a DLPack tensor");
  const Shape& shape = buffer.shape();
  std::uint64_t stride = 1;  // unsigned: the strides of a tensor without elements may wrap
  for (std::size_t axis = shape.rank(); axis-- > 0;) {
    exported->shape[axis] = static_cast<std::int64_t>(shape[axis]);
    exported->strides[axis] = static_cast<std::int64_t>(stride);
    stride *= shape[axis];
  }
  // If a block is identified by an address, data points at the first byte of the window. If it is identified by an
  // object of the driver, byte_offset counts from the start of the object.
  const DlpackPlace place = buffer.device().dlpack_place(window.block);
  exported->managed.tensor = {
      .data = reinterpret_cast<void*>(place.is_object || place.data == 0 ? place.data : place.data + window.offset),
      .device = {place.device_type, place.device_id},
      .ndim = static_cast<std::int32_t>(shape.rank()),
      .dtype = type,
      .shape = exported->shape.data(),
      .strides = exported->strides.data(),
      .byte_offset = place.is_object ? window.offset : 0};
  exported->managed.context = exported;
  exported->managed.deleter = &Exported<Managed>::release;
  return &exported->managed;
}

// device("CPU") without a lookup by name while the device is alive: most imports are from the host.
Result<DevicePtr> host_device() {
  thread_local std::weak_ptr<Device> known;
  if (DevicePtr alive = known.lock()) return alive;
  BERTH_TRY_ASSIGN(DevicePtr opened, device("CPU"));
  known = opened;
  return opened;
}

Result<DevicePtr> device_for(const DeviceId& place) {
  return place.type == kCpu ? host_device() : device_for_dlpack(place.type, place.id);
}

// Requires: at least one element.
bool is_dense(const Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::uint64_t stride = 1;  // cannot overflow: the number of elements fits 64 bits
  for (std::int32_t axis = tensor.ndim; axis-- > 0;) {
    if (tensor.shape[axis] != 1 && static_cast<std::uint64_t>(tensor.strides[axis]) != stride) return false;
    stride *= static_cast<std::uint64_t>(tensor.shape[axis]);
  }
  return true;
}

// The first address and the number of bytes from the first to the last byte that the tensor uses. kInvalidArgument if
// they are not addresses: a null pointer, or an offset or strides that lead past either end of the address space.
// Requires: at least one element of `element` bytes. `bytes` is the size of the tensor if it is dense.
Result<void> check_addresses(const Tensor& tensor, bool dense, std::uint64_t bytes, std::uint64_t element) {
  if (tensor.data == nullptr)
    return Error(Code::kInvalidArgument, Layer::kInterop, "a DLPack tensor of {} bytes without data", bytes);
  bool wraps = false;
  std::uint64_t first = 0;
  wraps |= __builtin_add_overflow(reinterpret_cast<std::uint64_t>(tensor.data), tensor.byte_offset, &first);
  std::uint64_t below = 0;
  std::uint64_t above = bytes;
  if (!dense) {
    above = element;
    for (std::int32_t axis = 0; axis < tensor.ndim; ++axis) {
      const std::int64_t stride = tensor.strides[axis];
      // The magnitude, also of the smallest number, which has no positive counterpart.
      std::uint64_t reach = stride < 0 ? 0 - static_cast<std::uint64_t>(stride) : static_cast<std::uint64_t>(stride);
      wraps |= __builtin_mul_overflow(reach, static_cast<std::uint64_t>(tensor.shape[axis] - 1), &reach);
      wraps |= __builtin_mul_overflow(reach, element, &reach);
      std::uint64_t& side = stride < 0 ? below : above;
      wraps |= __builtin_add_overflow(side, reach, &side);
    }
    // Offsets of elements are signed.
    wraps |= std::max(below, above) > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  }
  std::uint64_t end = 0;
  wraps |= below > first || __builtin_add_overflow(first, above, &end);
  if (wraps)
    return Error(Code::kInvalidArgument, Layer::kInterop,
                 "a DLPack tensor at {} with byte offset {}: its offset or strides lead out of the address space",
                 reinterpret_cast<std::uint64_t>(tensor.data), tensor.byte_offset);
  return {};
}

// Row by row in the order of the target; the innermost run is one memcpy if it is dense. Requires: at least one
// element.
void copy_strided(std::byte* target, const Tensor& tensor, const std::byte* source, std::size_t element) {
  const auto rank = static_cast<std::size_t>(tensor.ndim);
  std::array<std::int64_t, kMaxRank> index{};
  const std::int64_t inner = rank == 0 ? 1 : tensor.shape[rank - 1];
  const std::int64_t inner_stride = rank == 0 ? 1 : tensor.strides[rank - 1];
  for (;;) {
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis + 1 < rank; ++axis) at += index[axis] * tensor.strides[axis];
    const std::byte* from = source + at * static_cast<std::int64_t>(element);
    if (inner_stride == 1) {
      std::memcpy(target, from, static_cast<std::size_t>(inner) * element);
      target += static_cast<std::size_t>(inner) * element;
    } else {
      for (std::int64_t i = 0; i < inner; ++i, target += element)
        std::memcpy(target, from + i * inner_stride * static_cast<std::int64_t>(element), element);
    }
    std::size_t axis = rank > 0 ? rank - 1 : 0;
    while (axis > 0 && ++index[axis - 1] == tensor.shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

Result<Buffer> import_described(const Tensor& tensor, bool read_only, bool padded, Copy copy,
                                std::function<void()> release) {
  // Until Buffer::import takes ownership, a failure here must call the deleter.
  struct Guard {
    std::function<void()> release;
    ~Guard() {
      if (release) release();
    }
  } guard{std::move(release)};
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr))
    return Error(Code::kInvalidArgument, Layer::kInterop, "a DLPack tensor of {} dimensions without a shape",
                 tensor.ndim);
  std::array<std::size_t, kMaxRank> extents{};
  if (static_cast<std::size_t>(tensor.ndim) > kMaxRank)
    return Error(Code::kInvalidArgument, Layer::kInterop, "a DLPack tensor of {} dimensions; Berth holds {}",
                 tensor.ndim, kMaxRank);
  for (std::int32_t axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] < 0)
      return Error(Code::kInvalidArgument, Layer::kInterop, "a DLPack dimension of {}", tensor.shape[axis]);
    extents[static_cast<std::size_t>(axis)] = static_cast<std::size_t>(tensor.shape[axis]);
  }
  const Shape shape(std::span<const std::size_t>(extents.data(), static_cast<std::size_t>(tensor.ndim)));
  BERTH_TRY_ASSIGN(const DType dtype, dtype_of_type(tensor.dtype));
  if (padded && tensor.dtype.bits < 8)
    return Error(Code::kTypeMismatch, Layer::kInterop,
                 "{}-bit elements padded to bytes; Berth holds them packed: pack them first", tensor.dtype.bits);
  BERTH_TRY_ASSIGN(const std::size_t elements, shape.element_count());
  BERTH_TRY_ASSIGN(const std::size_t bytes, byte_size(dtype, elements));
  BERTH_TRY_ASSIGN(DevicePtr place, device_for(tensor.device));
  const bool object = place->dlpack_place({}).is_object;
  static const Name label("dlpack");
  // Without elements, the pointer, the offset and the strides mean nothing, and the pointer may be null.
  if (elements == 0) {
    if (object) return Buffer::allocate(std::move(place), dtype, shape, {.label = label});
    ForeignMemory nothing{.address = reinterpret_cast<std::uint64_t>(tensor.data),
                          .bytes = 0,
                          .read_only = read_only,
                          .release = std::exchange(guard.release, nullptr)};
    return Buffer::import(std::move(place), std::move(nothing), dtype, shape, {.label = label});
  }
  const bool packed = is_dense(tensor);
  BERTH_TRY(check_addresses(tensor, packed, bytes, info(dtype).block_bytes));
  if (!packed) {
    const bool on_host = place->kind() == "CPU";
    if (copy == Copy::kNever || !on_host || tensor.dtype.bits < 8)
      return Error::with_text(
          Code::kUnsupported, Layer::kInterop,
          fmt::format(
              "the tensor of shape {} is strided and a buffer is dense: {}", shape.to_string(),
              on_host ? "allow a copy, or make it contiguous first" : "make it contiguous on its device first"));
    BERTH_TRY_ASSIGN(Buffer dense, Buffer::allocate(place, dtype, shape, {.label = "dlpack copy"}));
    BERTH_TRY_ASSIGN(const std::span<std::byte> target, dense.as_host_bytes_mut());
    copy_strided(target.data(), tensor, static_cast<const std::byte*>(tensor.data) + tensor.byte_offset,
                 info(dtype).block_bytes);
    return dense;
  }
  const std::size_t offset = object ? tensor.byte_offset : 0;
  ForeignMemory memory{.address = reinterpret_cast<std::uint64_t>(tensor.data) + (object ? 0 : tensor.byte_offset),
                       .bytes = bytes + offset,
                       .read_only = read_only,
                       .release = std::exchange(guard.release, nullptr)};
  if (offset == 0) return Buffer::import(std::move(place), std::move(memory), dtype, shape, {.label = label});
  BERTH_TRY_ASSIGN(const Buffer whole,
                   Buffer::import(std::move(place), std::move(memory), DType::kU8, {bytes + offset}, {.label = label}));
  return whole.view(offset, dtype, shape);
}

template <class Managed>
std::function<void()> deleter_of(Managed* managed) {
  return [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  };
}

}  // namespace

DeviceId device_of(const Buffer& buffer) noexcept {
  // The kind of memory may decide. Of a lazy buffer only the flags are known, and window() would allocate it.
  const bool host = buffer.size() > 0 && buffer.cpu_accessible();
  Block block{.flags = host ? BlockFlags::kHostPointer : BlockFlags::kNone};
  if (buffer.is_allocated())
    if (const auto window = buffer.window()) block = window->block;
  const DlpackPlace place = buffer.device().dlpack_place(block);
  return {place.device_type, place.device_id};
}

Result<Type> type_of(DType dtype) noexcept {
  for (const Row& row : kTypes)
    if (row.dtype == dtype) return row.type;
  return Error(Code::kUnsupported, Layer::kInterop,
               "DLPack has no type for blocks of {} elements in {} bytes: share the buffer's view of u8 instead",
               info(dtype).block_elements, info(dtype).block_bytes);
}

Result<ManagedTensorVersioned*> export_buffer(const Buffer& buffer) {
  BERTH_TRY_ASSIGN(ManagedTensorVersioned* const managed, export_as<ManagedTensorVersioned>(buffer));
  managed->version = kVersion;
  managed->flags = buffer.is_read_only() ? kReadOnly : 0;
  return managed;
}

Result<ManagedTensor*> export_buffer_legacy(const Buffer& buffer) {
  if (buffer.is_read_only())
    return Error(Code::kReadOnly, Layer::kInterop,
                 "read-only memory of {} bytes cannot be shared through DLPack before 1.0, which has no way to say so: "
                 "ask for version 1 or copy it",
                 buffer.size());
  return export_as<ManagedTensor>(buffer);
}

Result<Buffer> import_tensor(ManagedTensorVersioned* managed, Copy copy) {
  if (managed == nullptr) return Error(Code::kInvalidArgument, Layer::kInterop, "a null DLPack tensor");
  auto release = deleter_of(managed);
  if (managed->version.major > kVersion.major) {
    // In a newer major version, only the version and the deleter may be accessed.
    const Version version = managed->version;
    release();
    return Error(Code::kInvalidArgument, Layer::kInterop, "a DLPack tensor of version {}.{}; Berth knows 1.x",
                 version.major, version.minor);
  }
  return import_tensor(managed->tensor, managed->flags, std::move(release), copy);
}

Result<Buffer> import_tensor(ManagedTensor* managed, Copy copy) {
  if (managed == nullptr) return Error(Code::kInvalidArgument, Layer::kInterop, "a null DLPack tensor");
  return import_tensor(managed->tensor, 0, deleter_of(managed), copy);
}

Result<Buffer> import_tensor(const Tensor& tensor, std::uint64_t flags, std::function<void()> release, Copy copy) {
  return import_described(tensor, (flags & kReadOnly) != 0, (flags & kSubbytePadded) != 0, copy, std::move(release));
}

}  // namespace berth::dlpack
