#include "berth/base/result.h"
#include "bindings.h"

namespace berth::python {
namespace {

PyObject* exception_type(const Error& error) {
  switch (error.code()) {
    case Code::kOutOfMemory: return PyExc_MemoryError;
    case Code::kTypeMismatch: return PyExc_TypeError;
    case Code::kNotFound: return error.layer() == Layer::kFormat ? PyExc_FileNotFoundError : PyExc_ValueError;
    case Code::kCancelled: return PyExc_InterruptedError;
    case Code::kIo:
    case Code::kDeviceUnavailable:
    case Code::kDeviceLost:
    case Code::kDriver: return PyExc_OSError;
    default: return PyExc_ValueError;
  }
}

void set_error(const Error& error) {
  // A Python exception raised by a callback goes first.
  if (PyErr_Occurred() != nullptr) return;
  const std::string text = error.message();
  const nb::object made = nb::handle(exception_type(error))(text.c_str());
  const std::string code(to_string(error.code()));
  made.attr("code") = code.c_str();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

}  // namespace

void raise(const Error& error) {
  set_error(error);
  throw nb::python_error();
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const BadResult& bad) {
      set_error(bad.error());
    }
  });
}

}  // namespace berth::python
