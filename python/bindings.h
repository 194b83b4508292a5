// Functions that the binding files share. Each file binds one header through one function. Failures leave C++ as
// BadResult (by value()) and reach Python as MemoryError, TypeError, OSError or ValueError with Berth's message.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "berth/tensor/buffer.h"

namespace berth::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_device(nb::module_& module);
void bind_buffer(nb::module_& module);
void bind_dlpack(nb::class_<Buffer>& buffer, nb::module_& module);
void bind_weights(nb::module_& module);
void bind_allocators(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_arena(nb::module_& module);
void bind_schedule(nb::module_& module);
void bind_step_buffers(nb::module_& module);
void bind_kv(nb::module_& module);
void bind_sharing(nb::module_& module);
void bind_recording(nb::module_& module);
void bind_onnxruntime(nb::module_& module);
void bind_ncnn(nb::module_& module);

// Buffer.share(): the class of its result is bound by bind_sharing.
SharedMemory share(const Buffer& buffer, bool writable);

// A Python exception of the right kind, with `code` as an attribute.
[[noreturn]] void raise(const Error& error);

// A dtype by name ("f32", "bf16", ...) or by anything that NumPy accepts as a dtype (np.float32, "float32").
DType dtype_from(nb::handle object);
// A shape from an integer or a sequence of them.
Shape shape_from(nb::handle object);
nb::tuple shape_tuple(const Shape& shape);
// A device by name, or an allocator object made by this module.
AllocatorPtr allocator_from(nb::handle object);
// The buffer itself, or one over the memory of any object with __dlpack__ or the buffer protocol.
Buffer buffer_from(nb::handle object);

// Bytes of any object with the buffer protocol, held for its lifetime.
class HostBytes {
 public:
  HostBytes(nb::handle object, bool writable);
  ~HostBytes() { PyBuffer_Release(&view_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// A Python object that C++ may copy and drop on any thread, with or without the interpreter lock.
class AnyThreadObject {
 public:
  explicit AnyThreadObject(nb::handle object)
      : object_(new nb::object(nb::borrow(object)), [](nb::object* held) {
          if (Py_IsInitialized() == 0) return;
          const nb::gil_scoped_acquire acquire;
          delete held;
        }) {}
  // Requires: the interpreter lock.
  const nb::object& get() const noexcept { return *object_; }

 private:
  std::shared_ptr<nb::object> object_;
};

// Runs `work` without the interpreter lock.
template <class Work>
auto released(Work&& work) {
  const nb::gil_scoped_release release;
  return work();
}

}  // namespace berth::python
