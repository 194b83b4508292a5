// Shares buffers with other frameworks through DLPack, without copies. An exported tensor keeps the storage of the
// buffer alive until its deleter runs, on any thread, even after everything else is destroyed. An imported tensor
// becomes a Buffer over foreign memory; its last handle calls the foreign deleter. The structs below have DLPack's
// layout (1.x and the form before it) and are declared here so that no header of another project is needed. Any thread
// may call.
#pragma once

#include <cstdint>
#include <functional>

#include "berth/base/result.h"
#include "berth/tensor/buffer.h"

namespace berth::dlpack {

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
inline constexpr Version kVersion{1, 1};

enum DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,  // pinned host memory
  kMetal = 8,
  kCudaManaged = 13,
  kWebGpu = 15,
};

struct DeviceId {
  std::int32_t type;  // a DeviceType, or a type that Berth has no device for
  std::int32_t id;
};

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3 = 8,
  kFloat8E4M3FN = 10,
  kFloat8E4M3FNUZ = 11,
  kFloat8E5M2 = 12,
  kFloat8E5M2FNUZ = 13,
  kFloat8E8M0FNU = 14,
  kFloat6E2M3FN = 15,
  kFloat6E3M2FN = 16,
  kFloat4E2M1FN = 17,
};

struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceId device;
  std::int32_t ndim;
  Type dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: dense, row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // before 1.0
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;
inline constexpr std::uint64_t kSubbytePadded = 4;

struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned* self);
  std::uint64_t flags;
  Tensor tensor;
};

// The DLPack device of a buffer: host memory, mapped files and an empty handle are (kCpu, 0); managed memory of CUDA is
// kCudaManaged. Allocates nothing.
DeviceId device_of(const Buffer& buffer) noexcept;
// The DLPack type of a dtype. kUnsupported for the block types of GGUF: view them as u8.
Result<Type> type_of(DType dtype) noexcept;

// Exports a tensor over the same bytes. Work submitted on the buffer is complete on return, so the receiver may use it
// on any stream. Allocates a lazy buffer, unless it is refused: kUnsupported for a dtype without a DLPack type and for
// an extent of 2^63 or more. The caller must call deleter(self) once; deleter(null) does nothing.
Result<ManagedTensorVersioned*> export_buffer(const Buffer& buffer);
// The form before 1.0, which cannot express read-only memory: kReadOnly for such a buffer.
Result<ManagedTensor*> export_buffer_legacy(const Buffer& buffer);

enum class Copy : std::uint8_t {
  kNever,     // kUnsupported if the tensor is not dense
  kIfNeeded,  // copies a tensor that is not dense into new host memory
};

// Imports a tensor as a buffer over its memory; is_foreign() is true for it. Takes ownership of the tensor: its deleter
// runs when the last handle is destroyed, and also if this call fails. A null deleter is allowed. kTypeMismatch for a
// type that Berth does not have (or lanes), kDeviceUnavailable for a device that it cannot access, kInvalidArgument for
// a null or newer tensor, more than kMaxRank dimensions, elements without data, and an offset or strides that lead out
// of the address space. In a tensor without elements the pointer, the offset and the strides are ignored. Requires: the
// work of the producer is complete, or the caller waits for it; every byte that the tensor describes can be read.
Result<Buffer> import_tensor(ManagedTensorVersioned* tensor, Copy copy = Copy::kIfNeeded);
Result<Buffer> import_tensor(ManagedTensor* tensor, Copy copy = Copy::kIfNeeded);
// The same for a tensor whose deleter must be called in a special way, under a lock or on another thread: `release` is
// called once instead. `flags` are those of ManagedTensorVersioned. Requires: the tensor is of version 1.x or older.
Result<Buffer> import_tensor(const Tensor& tensor, std::uint64_t flags, std::function<void()> release,
                             Copy copy = Copy::kIfNeeded);

}  // namespace berth::dlpack
