#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "berth/alloc/shareable.h"
#include "berth/memory/shared_memory.h"
#include "bindings.h"

namespace berth::python {
namespace {

// Memory of another process is on a device; a stack of allocators has one at its bottom.
DevicePtr device_from(nb::handle where) {
  const AllocatorPtr allocator = allocator_from(where);
  return std::static_pointer_cast<Device>(allocator->device().shared_from_this());
}

int descriptor_from(nb::handle object) {
  const int number = PyObject_AsFileDescriptor(object.ptr());
  if (number < 0) throw nb::python_error();
  return number;
}

Buffer import_shared(nb::handle descriptor, nb::handle shape, nb::handle dtype, nb::handle where, std::size_t offset,
                     std::size_t memory_bytes, bool writable, const std::optional<std::string>& label) {
  const DevicePtr device = device_from(where);
  const DType type = dtype_from(dtype);
  const Shape extents = shape_from(shape);
  SharedMemory memory{
      .descriptor = Descriptor(descriptor_from(descriptor)), .memory_bytes = memory_bytes, .offset = offset};
  auto imported =
      Buffer::import_shared(device, memory, type, extents, writable ? SharedAccess::kReadWrite : SharedAccess::kRead,
                            {.label = label ? Name(*label) : Name()});
  static_cast<void>(memory.descriptor.release());  // the caller's
  return std::move(imported).value();
}

}  // namespace

SharedMemory share(const Buffer& buffer, bool writable) {
  return buffer.share(writable ? SharedAccess::kReadWrite : SharedAccess::kRead).value();
}

void bind_sharing(nb::module_& module) {
  nb::class_<SharedMemory>(
      module, "SharedMemory",
      "What another process needs to import a buffer: a descriptor, which socket.send_fds() or inheritance passes on, "
      "and two numbers. Made by Buffer.share(); it closes the descriptor when it goes.\n\n"
      ">>> import berth\n"
      ">>> buffer = berth.Buffer(4, 'i32', berth.shareable(), zero=True)\n"
      ">>> with buffer.share() as shared:\n"
      "...     theirs = berth.import_shared(shared, 4, 'i32', offset=shared.offset)\n"
      ">>> buffer.numpy()[:] = 7\n"
      ">>> theirs.numpy()\n"
      "array([7, 7, 7, 7], dtype=int32)")
      .def(
          "fileno",
          [](const SharedMemory& self) {
            if (self.descriptor.get() < 0) throw nb::value_error("the descriptor of this shared memory is closed");
            return self.descriptor.get();
          },
          "The number of the descriptor; ValueError if it is closed.")
      .def_ro("memory_bytes", &SharedMemory::memory_bytes,
              "The bytes of all memory behind the descriptor. An import on CUDA needs it.")
      .def_ro("offset", &SharedMemory::offset, "Where the buffer starts in that memory.")
      .def(
          "close", [](SharedMemory& self) { self.descriptor = Descriptor(); },
          "Closes the descriptor. The buffer and whoever imported it are not affected.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> SharedMemory"))
      .def(
          "__exit__", [](SharedMemory& self, nb::args) { self.descriptor = Descriptor(); },
          nb::sig("def __exit__(self, *args: object) -> None"));

  module.def(
      "shareable", [](nb::handle where) { return make_shareable(device_from(where)).value(); },
      nb::arg("device") = "CPU",
      "An allocator whose buffers can be shared with other processes.\n\n"
      ">>> import berth\n"
      ">>> berth.Buffer(10, 'f32', berth.shareable())\n"
      "<berth.Buffer f32[10] on CPU, 40 B>");
  module.def("import_shared", &import_shared, nb::arg("descriptor"), nb::arg("shape"), nb::arg("dtype") = "f32",
             nb::arg("device") = "CPU", nb::kw_only(), nb::arg("offset") = 0, nb::arg("memory_bytes") = 0,
             nb::arg("writable") = false, nb::arg("label") = nb::none(),
             "A buffer over memory that another process shares, without a copy. `descriptor` is a number or has "
             "fileno(), and may be closed afterwards. Read-only unless `writable`.\n\n"
             ">>> import berth\n"
             ">>> mine = berth.Buffer(2, 'u8', berth.shareable())\n"
             ">>> mine.copyin(b'ab')\n"
             ">>> berth.import_shared(mine.share(), 2, 'u8').tobytes()\n"
             "b'ab'");
}

}  // namespace berth::python
