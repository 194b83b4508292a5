#include <fmt/format.h>
#include <nanobind/stl/optional.h>

#include "berth/dlpack.h"
#include "bindings.h"

namespace berth::python {
namespace {

constexpr const char* kName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

// A capsule that nobody took: its tensor goes with it.
template <class Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}

nb::object to_capsule(const Buffer& buffer, bool versioned) {
  PyObject* capsule;
  if (versioned) {
    auto* managed = dlpack::export_buffer(buffer).value();
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

// Another library's deleter may touch Python objects, and the last handle may go on any thread.
template <class Managed>
void with_lock(Managed* managed, void (*deleter)(Managed*)) {
  if (deleter == nullptr || Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  deleter(managed);
  PyGILState_Release(state);
}

// Wraps the foreign tensor so that its deleter runs under the interpreter lock.
template <class Managed>
Managed* guarded(Managed* foreign) {
  struct Guard {
    Managed own;
    Managed* foreign;
  };
  auto* guard = new Guard{*foreign, foreign};
  guard->own.context = guard;
  guard->own.deleter = [](Managed* self) {
    if (self == nullptr) return;
    auto* held = static_cast<Guard*>(self->context);
    with_lock(held->foreign, held->foreign->deleter);
    delete held;
  };
  return &guard->own;
}

Buffer from_capsule(PyObject* capsule, dlpack::Copy copy) {
  if (PyCapsule_IsValid(capsule, kVersionedName) != 0) {
    auto* foreign = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kVersionedName));
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    if (foreign->version.major > 1) return dlpack::import_tensor(foreign, copy).value();
    return dlpack::import_tensor(guarded(foreign), copy).value();
  }
  if (PyCapsule_IsValid(capsule, kName) != 0) {
    auto* foreign = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, kName));
    PyCapsule_SetName(capsule, "used_dltensor");
    return dlpack::import_tensor(guarded(foreign), copy).value();
  }
  throw nb::value_error("__dlpack__ gave no DLPack capsule, or one that was used already");
}

// Where the tensor of a capsule is; CPU for what is no DLPack capsule.
dlpack::DeviceId place_of(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kVersionedName) != 0) {
    const auto* tensor = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kVersionedName));
    if (tensor->version.major == 1) return tensor->tensor.device;
  } else if (PyCapsule_IsValid(capsule, kName) != 0) {
    return static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, kName))->tensor.device;
  }
  return {dlpack::kCpu, 0};
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
// is done: so the many producers in host memory are not asked for their place first. Null if there is no __dlpack__.
nb::object ask(nb::handle producer) {
  static PyObject* const method = PyUnicode_InternFromString("__dlpack__");
  static PyObject* const keywords = PyTuple_Pack(1, nb::str("max_version").ptr());
  static PyObject* const version = Py_BuildValue("(ii)", 1, 1);
  PyObject* arguments[] = {producer.ptr(), version};
  PyObject* capsule = PyObject_VectorcallMethod(method, arguments, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError) != 0 &&
      !nb::hasattr(producer.type(), "__dlpack__")) {
    PyErr_Clear();
    return {};
  }
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_Clear();
    capsule = PyObject_CallMethodNoArgs(producer.ptr(), method);
  }
  if (capsule == nullptr) throw nb::python_error();
  nb::object made = nb::steal(capsule);
  const dlpack::DeviceId place = place_of(capsule);
  if (place.type != dlpack::kCuda && place.type != dlpack::kCudaManaged) return made;
  made.reset();
  return producer.attr("__dlpack__")(nb::arg("stream") = stream_on(place),
                                     nb::arg("max_version") = nb::borrow(version));
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
            bool versioned = false;
            if (!max_version.is_none()) {
              const nb::object major = max_version[0];
              versioned = PyLong_AsLong(major.ptr()) >= 1;
            }
            const bool must_copy = copy.is_valid() && copy.ptr() == Py_True;
            if (!dl_device.is_none()) {
              const auto wanted = nb::cast<int>(dl_device[0]);
              if (wanted != dlpack::device_of(self).type) {
                if (wanted != dlpack::kCpu || copy.ptr() == Py_False) {
                  PyErr_SetString(PyExc_BufferError, "the buffer is on another device: use to(device) first");
                  throw nb::python_error();
                }
                const Buffer host = nb::cast<Buffer>(nb::cast(self).attr("to")("CPU"));
                return to_capsule(host, versioned);
              }
            }
            if (must_copy) return to_capsule(nb::cast<Buffer>(nb::cast(self).attr("to")("CPU")), versioned);
            return to_capsule(self, versioned);
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
        if (PyCapsule_CheckExact(object.ptr()) != 0)
          return from_capsule(object.ptr(), copy == false ? dlpack::Copy::kNever : dlpack::Copy::kIfNeeded);
        const nb::object capsule = ask(object);
        Buffer shared = capsule.is_valid() ? from_capsule(capsule.ptr(), copy == false ? dlpack::Copy::kNever
                                                                                       : dlpack::Copy::kIfNeeded)
                                           : from_host(object);
        if (copy != true || !shared.is_foreign()) return shared;
        return nb::cast<Buffer>(nb::cast(shared).attr("to")(std::string(shared.device().name()).c_str()));
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
