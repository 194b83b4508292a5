#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>

#include "berth/tensor/buffer.h"
#include "bindings.h"

namespace berth::python {
namespace {

// The letter of the struct module for a dtype; null for dtypes without one, which are shared as plain bytes.
const char* format_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBool: return "?";
    case DType::kI8: return "b";
    case DType::kI16: return "h";
    case DType::kI32: return "i";
    case DType::kI64: return "q";
    case DType::kU8: return "B";
    case DType::kU16: return "H";
    case DType::kU32: return "I";
    case DType::kU64: return "Q";
    case DType::kF16: return "e";
    case DType::kF32: return "f";
    case DType::kF64: return "d";
    case DType::kC64: return "Zf";
    default: return nullptr;
  }
}

const Buffer& live(const Buffer& buffer) {
  if (buffer.id() == 0) raise(Error(Code::kNotAllocated, Layer::kBuffer, "this buffer was released"));
  return buffer;
}

struct ViewShape {
  Py_ssize_t shape[kMaxRank];
  Py_ssize_t strides[kMaxRank];
};

int get_buffer(PyObject* object, Py_buffer* view, int flags) {
  view->obj = nullptr;  // stays so on failure
  try {
    const Buffer& buffer = *nb::inst_ptr<Buffer>(object);
    if (buffer.id() == 0) {
      PyErr_SetString(PyExc_BufferError, "this buffer was released");
      return -1;
    }
    const bool writable = (flags & PyBUF_WRITABLE) == PyBUF_WRITABLE;
    if (writable && buffer.is_read_only()) {
      PyErr_SetString(PyExc_BufferError, "the buffer is read-only");
      return -1;
    }
    // A lazy buffer is allocated only where the host will be able to access it.
    Result<void> allocated;
    if (buffer.cpu_accessible()) allocated = buffer.ensure_allocated();
    auto bytes = buffer.as_host_bytes();
    if (!allocated || !bytes) {
      const std::string why = !allocated                 ? allocated.error().message()
                              : !buffer.cpu_accessible() ? "the host cannot access memory of this device: use to('CPU')"
                                                         : bytes.error().message();
      PyErr_SetString(PyExc_BufferError, why.c_str());
      return -1;
    }
    static std::byte nothing{};
    const char* format = format_of(buffer.dtype());
    const Py_ssize_t element = format == nullptr ? 1 : static_cast<Py_ssize_t>(info(buffer.dtype()).block_bytes);
    auto shape = std::make_unique<ViewShape>();
    int rank = 1;
    shape->shape[0] = static_cast<Py_ssize_t>(buffer.size());
    if (format != nullptr) {
      rank = static_cast<int>(buffer.shape().rank());
      for (int axis = 0; axis < rank; ++axis)
        shape->shape[axis] = static_cast<Py_ssize_t>(buffer.shape()[static_cast<std::size_t>(axis)]);
    }
    auto stride = static_cast<std::size_t>(element);  // unsigned: may wrap if there are no elements
    for (int axis = rank; axis-- > 0;) {
      shape->strides[axis] = static_cast<Py_ssize_t>(stride);
      stride *= static_cast<std::size_t>(shape->shape[axis]);
    }
    // The exporter is a new object with its own handle, so that release() cannot free memory under a view.
    view->obj = nb::cast(Buffer(buffer)).release().ptr();
    view->buf = bytes->empty() ? &nothing : const_cast<std::byte*>(bytes->data());
    view->len = static_cast<Py_ssize_t>(buffer.size());
    view->readonly = buffer.is_read_only() ? 1 : 0;
    view->itemsize = element;
    view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format == nullptr ? "B" : format) : nullptr;
    view->ndim = (flags & PyBUF_ND) != 0 ? rank : 1;
    view->shape = (flags & PyBUF_ND) != 0 ? shape->shape : nullptr;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? shape->strides : nullptr;
    view->suboffsets = nullptr;
    view->internal = shape.release();
    return 0;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
    return -1;
  }
}

void release_buffer(PyObject*, Py_buffer* view) {
  delete static_cast<ViewShape*>(view->internal);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

std::string describe(const Buffer& buffer) {
  if (buffer.id() == 0) return "<berth.Buffer released>";
  return "<berth.Buffer " + to_string(buffer) + ">";
}

BufferOptions options_of(const std::optional<std::string>& label, bool zero, std::size_t alignment) {
  return {.label = label ? Name(*label) : Name(), .alignment = alignment, .zero = zero};
}

Buffer make(nb::handle shape, nb::handle dtype, nb::handle where, const std::optional<std::string>& label, bool zero,
            bool lazy, std::size_t alignment) {
  const AllocatorPtr allocator = allocator_from(where);
  const DType type = dtype_from(dtype);
  const Shape extents = shape_from(shape);
  const BufferOptions options = options_of(label, zero, alignment);
  return released([&] {
           return lazy ? Buffer::lazy(allocator, type, extents, options)
                       : Buffer::allocate(allocator, type, extents, options);
         })
      .value();
}

// Uses DLPack if NumPy preserves whether memory is writable: several times faster than the buffer protocol. Everything
// else uses the buffer protocol, which also reports errors.
nb::object numpy_of(nb::handle self) {
  static const PyObject* const import_array =
      nb::module_::import_("berth._dtypes").attr("quick_import")().release().ptr();
  const Buffer& buffer = *nb::inst_ptr<Buffer>(self);
  if (import_array != Py_None && format_of(buffer.dtype()) != nullptr && buffer.as_host_bytes())
    return nb::handle(import_array)(self);
  return nb::module_::import_("berth._dtypes").attr("array_of")(self);
}

nb::object item(const Buffer& buffer) {
  const auto number = [&]<class T>(T) { return nb::cast(live(buffer).item<T>().value()); };
  switch (buffer.dtype()) {
    case DType::kBool: return number(false);
    case DType::kI8: return number(std::int8_t{});
    case DType::kI16: return number(std::int16_t{});
    case DType::kI32: return number(std::int32_t{});
    case DType::kI64: return number(std::int64_t{});
    case DType::kU8: return number(std::uint8_t{});
    case DType::kU16: return number(std::uint16_t{});
    case DType::kU32: return number(std::uint32_t{});
    case DType::kU64: return number(std::uint64_t{});
    case DType::kF32: return number(float{});
    case DType::kF64: return number(double{});
    default:
      // Types without a Python number go through NumPy.
      if (buffer.element_count() != 1)
        raise(Error(Code::kSizeMismatch, Layer::kBuffer, "item() needs exactly one element and there are {}",
                    buffer.element_count()));
      return nb::cast(buffer).attr("numpy")().attr("item")();
  }
}

}  // namespace

HostBytes::HostBytes(nb::handle object, bool writable) {
  if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0)
    throw nb::python_error();
}

DType dtype_from(nb::handle object) {
  if (nb::isinstance<nb::str>(object)) {
    const std::string text = nb::cast<std::string>(object);
    if (const auto known = parse_dtype(text)) return *known;
  }
  // NumPy's names, classes and dtypes, including those of ml_dtypes.
  const std::string text = nb::cast<std::string>(nb::module_::import_("berth._dtypes").attr("name_of")(object));
  if (const auto known = parse_dtype(text)) return *known;
  raise(Error::with_text(Code::kTypeMismatch, Layer::kBuffer,
                         fmt::format("no dtype is called \"{}\"; berth.dtypes() lists them", text)));
}

Shape shape_from(nb::handle object) {
  std::vector<std::size_t> extents;
  const auto add = [&](nb::handle extent) {
    const Py_ssize_t value = PyNumber_AsSsize_t(extent.ptr(), PyExc_OverflowError);
    if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (value < 0) throw nb::value_error("a shape cannot have a negative extent");
    extents.push_back(static_cast<std::size_t>(value));
  };
  if (PyIndex_Check(object.ptr()) != 0)
    add(object);
  else
    for (nb::handle extent : object) add(extent);
  return Shape::make(extents).value();
}

nb::tuple shape_tuple(const Shape& shape) {
  nb::list extents;
  for (const std::size_t extent : shape.extents()) extents.append(extent);
  return nb::tuple(extents);
}

Buffer buffer_from(nb::handle object) {
  if (nb::isinstance<Buffer>(object)) return live(nb::cast<const Buffer&>(object));
  return nb::cast<Buffer>(nb::module_::import_("berth").attr("from_dlpack")(object));
}

void bind_buffer(nb::module_& module) {
  nb::class_<Buffer> buffer(module, "Buffer", nb::type_slots(buffer_slots),
                            "A typed, shaped window of memory on a device. Copies and views share the memory.\n\n"
                            ">>> import berth\n"
                            ">>> b = berth.Buffer((2, 3), 'f32', zero=True, label='logits')\n"
                            ">>> b\n"
                            "<berth.Buffer f32[2, 3] on CPU, 24 B, label \"logits\">\n"
                            ">>> b.view(12, 12).shape\n"
                            "(3,)\n"
                            ">>> b.numpy().sum()\n"
                            "np.float32(0.0)");
  buffer.def(
      "__init__",
      [](Buffer* self, nb::handle shape, nb::handle dtype, nb::handle where, const std::optional<std::string>& label,
         bool zero, bool lazy,
         std::size_t alignment) { new (self) Buffer(make(shape, dtype, where, label, zero, lazy, alignment)); },
      nb::arg("shape"), nb::arg("dtype") = "f32", nb::arg("device") = "CPU", nb::kw_only(),
      nb::arg("label").none() = nb::none(), nb::arg("zero") = false, nb::arg("lazy") = false, nb::arg("alignment") = 64,
      "Allocates now, or at first use when lazy. MemoryError says why and what would help.");

  buffer
      .def_prop_ro(
          "id", [](const Buffer& self) { return self.id(); }, "Unique to this handle; never reused.")
      .def_prop_ro(
          "storage_id", [](const Buffer& self) { return self.storage_id(); }, "Equal for all views of one storage.")
      .def_prop_ro(
          "dtype", [](const Buffer& self) { return std::string(to_string(self.dtype())); }, "Such as 'f32'.")
      .def_prop_ro(
          "shape", [](const Buffer& self) { return shape_tuple(self.shape()); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Extents, outermost first.")
      .def_prop_ro("ndim", [](const Buffer& self) { return self.shape().rank(); })
      .def_prop_ro(
          "size", [](const Buffer& self) { return self.element_count(); }, "Elements.")
      .def_prop_ro(
          "nbytes", [](const Buffer& self) { return self.size(); }, "Bytes of this window.")
      .def_prop_ro(
          "total_nbytes", [](const Buffer& self) { return self.total_size(); }, "Bytes of the whole storage.")
      .def_prop_ro(
          "byte_offset", [](const Buffer& self) { return self.byte_offset(); }, "Of the window in its storage.")
      .def_prop_ro("device", [](const Buffer& self) { return std::string(live(self).device().name()); })
      .def_prop_ro("label", [](const Buffer& self) { return std::string(self.label().text()); })
      .def_prop_ro("is_allocated", &Buffer::is_allocated)
      .def_prop_ro("is_unique", &Buffer::is_unique, "No other handle shares the storage.")
      .def_prop_ro("is_read_only", &Buffer::is_read_only)
      .def_prop_ro("cpu_accessible", &Buffer::cpu_accessible, "The host can access the bytes in place.")
      .def_prop_ro("is_foreign", &Buffer::is_foreign, "Somebody else's memory, through DLPack or the buffer protocol.")
      .def_prop_ro(
          "address",
          [](const Buffer& self) {
            live(self);
            if (!self.cpu_accessible()) return std::uintptr_t{0};  // does not cost a lazy buffer its memory
            self.ensure_allocated().value();
            return reinterpret_cast<std::uintptr_t>(self.as_raw_ptr());
          },
          "Of the first byte on the host; 0 where the host cannot reach it.");

  buffer
      .def(
          "view",
          [](const Buffer& self, std::size_t offset, std::size_t nbytes) {
            return live(self).view(offset, nbytes).value();
          },
          nb::arg("offset"), nb::arg("nbytes"),
          "Bytes [offset, offset + nbytes) of this window: no copy, its own id.\n\n"
          ">>> import berth\n"
          ">>> whole = berth.Buffer(8, 'f32', zero=True)\n"
          ">>> part = whole.view(16, 16)\n"
          ">>> part.shape, part.storage_id == whole.storage_id, part.id == whole.id\n"
          "((4,), True, False)")
      .def(
          "view_as",
          [](const Buffer& self, nb::handle dtype, nb::handle shape, std::size_t offset) {
            return live(self).view(offset, dtype_from(dtype), shape_from(shape)).value();
          },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("offset") = 0,
          "The same bytes as another dtype and shape.\n\n"
          ">>> import berth\n"
          ">>> berth.Buffer(2, 'f32', zero=True).view_as('u8', (2, 4))\n"
          "<berth.Buffer u8[2, 4] on CPU, 8 B>")
      .def(
          "reshape",
          [](const Buffer& self, nb::handle shape) { return live(self).with_shape(shape_from(shape)).value(); },
          nb::arg("shape"), "The same window in another shape of as many elements.")
      .def(
          "copyin",
          [](const Buffer& self, nb::handle source) {
            const HostBytes host(source, false);
            released([&] { return live(self).copyin(host.bytes()); }).value();
          },
          nb::arg("source"),
          "Copies from any object with the buffer protocol; the sizes must agree.\n\n"
          ">>> import berth\n"
          ">>> buffer = berth.Buffer(4, 'u8')\n"
          ">>> buffer.copyin(b'abcd')\n"
          ">>> buffer.tobytes()\n"
          "b'abcd'")
      .def(
          "copyout",
          [](const Buffer& self, nb::handle target) {
            const HostBytes host(target, true);
            released([&] { return live(self).copyout(host.bytes()); }).value();
          },
          nb::arg("target"), "Copies to any writable object with the buffer protocol; the sizes must agree.")
      .def(
          "tobytes",
          [](const Buffer& self) {
            PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(live(self).size()));
            if (bytes == nullptr) throw nb::python_error();
            const nb::object owned = nb::steal(bytes);
            const std::span<std::byte> target(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes)), self.size());
            released([&] { return self.copyout(target); }).value();
            return owned;
          },
          nb::sig("def tobytes(self) -> bytes"), "A copy of the bytes, from any device.")
      .def(
          "copy_from",
          [](const Buffer& self, const Buffer& source) {
            released([&] { return live(self).copy_from(live(source)); }).value();
          },
          nb::arg("source"), "Copies from a buffer on any device; overlapping windows behave as memmove.")
      .def(
          "to",
          [](const Buffer& self, nb::handle where) {
            const AllocatorPtr allocator = allocator_from(where);
            return released([&]() -> Result<Buffer> {
                     auto target =
                         Buffer::allocate(allocator, live(self).dtype(), self.shape(), {.label = self.label()});
                     if (!target) return target;
                     if (auto done = target->copy_from(self); !done) return done.error();
                     return target;
                   })
                .value();
          },
          nb::arg("device"), "A copy on another device (or the same).")
      .def("item", &item, nb::sig("def item(self) -> bool | int | float | complex"),
           "The only element, as a Python number.\n\n"
           ">>> import berth\n"
           ">>> berth.Buffer(1, 'i32', zero=True).item()\n"
           "0")
      .def("numpy", &numpy_of, nb::sig("def numpy(self) -> numpy.typing.NDArray[typing.Any]"),
           "A NumPy array over the same memory; it keeps the memory alive. TypeError for types NumPy cannot hold.\n\n"
           ">>> import berth\n"
           ">>> berth.Buffer(3, 'i32', zero=True).numpy()\n"
           "array([0, 0, 0], dtype=int32)")
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            return nb::module_::import_("berth._dtypes").attr("array_of")(self, dtype, copy);
          },
          nb::arg("dtype").none() = nb::none(), nb::arg("copy").none() = nb::none(),
          nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> object"))
      .def(
          "share", [](const Buffer& self, bool writable) { return share(live(self), writable); }, nb::kw_only(),
          nb::arg("writable") = false,
          "Shares the memory with another process, which imports it with berth.import_shared(). Needs a buffer of "
          "berth.shareable().")
      .def(
          "synchronize", [](const Buffer& self) { released([&] { return live(self).synchronize(); }).value(); },
          "Waits for all work on the device.")
      .def(
          "release", [](Buffer& self) { self = Buffer(); },
          "Lets go of the memory now; views, copies and exported arrays keep it alive for themselves.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Buffer"))
      .def(
          "__exit__", [](Buffer& self, nb::args) { self = Buffer(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__len__",
           [](const Buffer& self) {
             if (self.shape().rank() == 0) throw nb::type_error("len() of a buffer without dimensions");
             return self.shape()[0];
           })
      .def("__repr__", &describe);
  bind_dlpack(buffer, module);

  module.def(
      "dtypes",
      [] {
        nb::list names;
        for (std::size_t i = 0; i < kDTypeCount; ++i) names.append(std::string(to_string(static_cast<DType>(i))));
        return names;
      },
      nb::sig("def dtypes() -> list[str]"),
      "The names of all dtypes.\n\n"
      ">>> import berth\n"
      ">>> 'bf16' in berth.dtypes(), 'q4_0' in berth.dtypes()\n"
      "(True, True)");
  module.def(
      "dtype_info",
      [](nb::handle dtype) {
        const DTypeInfo& type = info(dtype_from(dtype));
        return nb::make_tuple(std::string(type.name), type.block_elements, type.block_bytes);
      },
      nb::arg("dtype"), nb::sig("def dtype_info(dtype: object) -> tuple[str, int, int]"),
      "Name, elements in a block and bytes in a block.\n\n"
      ">>> import berth\n"
      ">>> berth.dtype_info('q4_0')\n"
      "('q4_0', 32, 18)");
}

}  // namespace berth::python
