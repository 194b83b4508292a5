#include <fmt/format.h>
#include <nanobind/stl/optional.h>

#include <cstring>
#include <functional>
#include <optional>

#include "berth/interop/dlpack.h"
#include "berth/memory/registry.h"
#include "bindings.h"

namespace berth::python {
namespace {

constexpr const char* kName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

// A capsule that was never consumed: its tensor is deleted with it.
template <class Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}

nb::object to_capsule(const Buffer& buffer, bool versioned, bool copied) {
  PyObject* capsule;
  if (versioned) {
    auto* managed = dlpack::export_buffer(buffer).value();
    if (copied) managed->flags |= dlpack::kIsCopied;
    capsule = PyCapsule_New(managed, kVersionedName,
                            [](PyObject* self) { drop_capsule<dlpack::ManagedTensorVersioned>(self, kVersionedName); });
    if (capsule == nullptr) managed->deleter(managed);
  } else {
    auto exported = dlpack::export_buffer_legacy(buffer);
    if (!exported) {
      PyErr_SetString(PyExc_BufferError, exported.error().message().c_str());
      throw nb::python_error();
    }
    auto* managed = *exported;
    capsule = PyCapsule_New(managed, kName, [](PyObject* self) { drop_capsule<dlpack::ManagedTensor>(self, kName); });
    if (capsule == nullptr) managed->deleter(managed);
  }
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

// The deleter of another library may access Python objects, and the last handle may be destroyed on any thread.
template <class Managed>
void with_lock(Managed* managed, void (*deleter)(Managed*)) {
  if (deleter == nullptr || Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  deleter(managed);
  PyGILState_Release(state);
}

// The tensor of a capsule, in one of the two forms; both null for an object that is not a DLPack capsule or was used
// already.
struct Held {
  dlpack::ManagedTensorVersioned* versioned = nullptr;
  dlpack::ManagedTensor* old = nullptr;

  explicit Held(PyObject* capsule) {
    const char* const name = PyCapsule_GetName(capsule);
    if (name == nullptr) {
      PyErr_Clear();  // a name is not needed to be a capsule, or the object is none
    } else if (std::strcmp(name, kVersionedName) == 0) {
      versioned = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, name));
    } else if (std::strcmp(name, kName) == 0) {
      old = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, name));
    }
  }
  // The device of the tensor; CPU for an object that is not a DLPack capsule or has an unknown version.
  dlpack::DeviceId place() const {
    if (versioned != nullptr && versioned->version.major == 1) return versioned->tensor.device;
    if (old != nullptr) return old->tensor.device;
    return {dlpack::kCpu, 0};
  }
};

// The tensor's deleter, under the interpreter lock.
template <class Managed>
std::function<void()> deleter_of(Managed* managed) {
  return [managed] { with_lock(managed, managed->deleter); };
}

Buffer take(PyObject* capsule, const Held& held, dlpack::Copy copy) {
  if (held.versioned != nullptr) {
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    if (held.versioned->version.major > 1) return dlpack::import_tensor(held.versioned, copy).value();
    return dlpack::import_tensor(held.versioned->tensor, held.versioned->flags, deleter_of(held.versioned), copy)
        .value();
  }
  if (held.old != nullptr) {
    PyCapsule_SetName(capsule, "used_dltensor");
    return dlpack::import_tensor(held.old->tensor, 0, deleter_of(held.old), copy).value();
  }
  throw nb::value_error("__dlpack__ gave no DLPack capsule, or one that was used already");
}

// The stream of Berth's own queue on a GPU.
std::uint64_t stream_on(const dlpack::DeviceId& place) {
  std::uint64_t stream = 0;
  const auto keep = [&](void* native) -> Result<void> {
    stream = reinterpret_cast<std::uint64_t>(native);
    return {};
  };
  const DevicePtr gpu = device(fmt::format("CUDA:{}", place.id)).value();
  gpu->default_queue().value()->record_native({}, keep).value();
  return stream;
}

// Calls producer.__dlpack__(max_version=(1, 1)), or without arguments for producers that know no versions. A tensor
// that turns out to be on a GPU is asked for again with a stream of ours, for the producer to make wait until its work
// is done: so the many producers in host memory are not asked for their place first. Nothing if there is no __dlpack__.
std::optional<Buffer> ask(nb::handle producer, dlpack::Copy copy) {
  static PyObject* const method = PyUnicode_InternFromString("__dlpack__");
  // Interned, as the producer's own names are: they are then compared by address.
  static PyObject* const keywords = Py_BuildValue("(N)", PyUnicode_InternFromString("max_version"));
  static PyObject* const version = Py_BuildValue("(ii)", 1, 1);
  PyObject* arguments[] = {producer.ptr(), version};
  PyObject* capsule = PyObject_VectorcallMethod(method, arguments, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError) != 0 &&
      !nb::hasattr(producer.type(), "__dlpack__")) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_Clear();
    capsule = PyObject_CallMethodNoArgs(producer.ptr(), method);
  }
  if (capsule == nullptr) throw nb::python_error();
  nb::object made = nb::steal(capsule);
  const Held held(capsule);
  const dlpack::DeviceId place = held.place();
  if (place.type != dlpack::kCuda && place.type != dlpack::kCudaManaged) return take(capsule, held, copy);
  made.reset();
  made =
      producer.attr("__dlpack__")(nb::arg("stream") = stream_on(place), nb::arg("max_version") = nb::borrow(version));
  return take(made.ptr(), Held(made.ptr()), copy);
}

// Objects without __dlpack__ (bytes, mmap, array.array) are shared through the buffer protocol.
Buffer from_host(nb::handle object) {
  auto* view = new Py_buffer;
  if (PyObject_GetBuffer(object.ptr(), view, PyBUF_CONTIG_RO) != 0) {
    delete view;
    throw nb::python_error();
  }
  ForeignMemory memory{.address = reinterpret_cast<std::uint64_t>(view->buf),
                       .bytes = static_cast<std::size_t>(view->len),
                       .read_only = view->readonly != 0,
                       .release = [view] {
                         if (Py_IsInitialized() == 0) return;
                         const PyGILState_STATE state = PyGILState_Ensure();
                         PyBuffer_Release(view);
                         PyGILState_Release(state);
                         delete view;
                       }};
  const std::size_t bytes = memory.bytes;
  return Buffer::import(device("CPU").value(), std::move(memory), DType::kU8, {bytes}, {.label = "python"}).value();
}

}  // namespace

void bind_dlpack(nb::class_<Buffer>& buffer, nb::module_& module) {
  buffer
      .def(
          "__dlpack__",
          [](const Buffer& self, nb::handle stream, nb::handle max_version, nb::handle dl_device, nb::handle copy) {
            static_cast<void>(stream);  // submitted work is complete on return, so any stream may go on
            if (self.id() == 0) raise(Error(Code::kNotAllocated, Layer::kBuffer, "this buffer was released"));
            bool versioned = false;
            if (!max_version.is_none()) {
              const nb::object major = max_version[0];
              versioned = PyLong_AsLong(major.ptr()) >= 1;
              if (PyErr_Occurred() != nullptr) throw nb::python_error();
            }
            const dlpack::DeviceId here = dlpack::device_of(self);
            dlpack::DeviceId there = here;
            if (!dl_device.is_none()) there = {nb::cast<int>(dl_device[0]), nb::cast<int>(dl_device[1])};
            const bool elsewhere = there.type != here.type || there.id != here.id;
            if (elsewhere && (there.type != dlpack::kCpu || copy.ptr() == Py_False)) {
              PyErr_SetString(PyExc_BufferError, "the buffer is on another device: use to(device) first");
              throw nb::python_error();
            }
            if (!elsewhere && copy.ptr() != Py_True) return to_capsule(self, versioned, false);
            // A mapped file counts as host memory, and its copy must be writable.
            const std::string target = there.type == dlpack::kCpu ? "CPU" : std::string(self.device().name());
            return to_capsule(nb::cast<Buffer>(nb::cast(self).attr("to")(target.c_str())), versioned, true);
          },
          nb::kw_only(), nb::arg("stream").none() = nb::none(), nb::arg("max_version").none() = nb::none(),
          nb::arg("dl_device").none() = nb::none(), nb::arg("copy").none() = nb::none(),
          "The DLPack protocol: np.from_dlpack(buffer) and its like share the memory.")
      .def(
          "__dlpack_device__",
          [](const Buffer& self) {
            if (self.id() == 0) raise(Error(Code::kNotAllocated, Layer::kBuffer, "this buffer was released"));
            const dlpack::DeviceId place = dlpack::device_of(self);
            return nb::make_tuple(place.type, place.id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));

  module.def(
      "from_dlpack",
      [](nb::handle object, std::optional<bool> copy) {
        const dlpack::Copy allowed = copy == false ? dlpack::Copy::kNever : dlpack::Copy::kIfNeeded;
        if (PyCapsule_CheckExact(object.ptr()) != 0) return take(object.ptr(), Held(object.ptr()), allowed);
        std::optional<Buffer> shared = ask(object, allowed);
        if (!shared) shared = from_host(object);
        if (copy != true || !shared->is_foreign()) return *std::move(shared);
        return nb::cast<Buffer>(nb::cast(*shared).attr("to")(std::string(shared->device().name()).c_str()));
      },
      nb::arg("object"), nb::kw_only(), nb::arg("copy").none() = nb::none(),
      "A buffer over the memory of any array with __dlpack__, or of any object with the buffer protocol (as bytes).\n\n"
      "No copy, unless the array is strided (copy=False refuses that) or copy=True.\n\n"
      ">>> import berth, numpy as np\n"
      ">>> a = np.arange(6, dtype=np.int32).reshape(2, 3)\n"
      ">>> b = berth.from_dlpack(a)\n"
      ">>> b.address == a.ctypes.data, b.is_foreign\n"
      "(True, True)");
}

}  // namespace berth::python
