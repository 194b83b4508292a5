// Sharing buffers with other frameworks through DLPack, without copies. Export gives a managed tensor that keeps the
// buffer's storage alive until its deleter runs, on whatever thread, after everything else is gone. Import gives a
// Buffer over foreign memory whose last handle runs the foreign deleter. The structs below are DLPack's own layout
// (1.x and the form before it), declared here so that no header of another project is needed.
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
  std::int32_t type;  // a DeviceType, or a number that Berth has no device for
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
  std::int64_t* strides;  // in elements; null means dense, row by row
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

// The DLPack name of a buffer's place: host memory and mapped files are (kCpu, 0), managed memory of CUDA is
// kCudaManaged. Allocates a lazy buffer on CUDA, where only the block tells which it is.
DeviceId device_of(const Buffer& buffer) noexcept;
// The DLPack type of a dtype. kUnsupported for the block types of GGUF: view them as u8.
Result<Type> type_of(DType dtype) noexcept;

// A tensor of the same bytes. Work that was submitted on the buffer is complete on return, so that the receiver may
// use it on any stream. Allocates a lazy buffer. The caller calls deleter(self) once; deleter(null) does nothing.
Result<ManagedTensorVersioned*> export_buffer(const Buffer& buffer);
// The form before 1.0, which cannot say that memory is read-only: kReadOnly for such a buffer.
Result<ManagedTensor*> export_buffer_legacy(const Buffer& buffer);

enum class Copy : std::uint8_t {
  kNever,     // kUnsupported where strides are not those of a dense tensor
  kIfNeeded,  // then into fresh host memory
};

// A buffer over the tensor's memory, is_foreign() in reports. Takes the tensor over: its deleter runs when the last
// handle goes, and also when this call fails. A null deleter is legal. kTypeMismatch for a type that Berth does not
// have (or lanes), kDeviceUnavailable for a place that it cannot reach, kInvalidArgument for a null or newer tensor.
// Requires: the producer's work is complete, or is waited for by the caller.
Result<Buffer> import_tensor(ManagedTensorVersioned* tensor, Copy copy = Copy::kIfNeeded);
Result<Buffer> import_tensor(ManagedTensor* tensor, Copy copy = Copy::kIfNeeded);
// The same for a tensor whose deleter must run in some way of its own, under a lock or on another thread: `release` is
// called once in its place. `flags` are those of ManagedTensorVersioned. Requires: the tensor is of version 1.x or
// older.
Result<Buffer> import_tensor(const Tensor& tensor, std::uint64_t flags, std::function<void()> release,
                             Copy copy = Copy::kIfNeeded);

}  // namespace berth::dlpack
