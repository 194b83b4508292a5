#include "berth/tensor/step_buffers.h"
#include "bindings.h"

namespace berth::python {

void bind_step_buffers(nb::module_& module) {
  nb::class_<StepBuffers>(module, "StepBuffers",
                          "Buffers for steps that repeat: powers of two, last in first out, all back at once.\n\n"
                          ">>> import berth\n"
                          ">>> pool = berth.StepBuffers()\n"
                          ">>> for _ in range(3):\n"
                          "...     scratch = pool.allocate((100,), 'f32')\n"
                          "...     del scratch\n"
                          "...     pool.reset()\n"
                          ">>> pool.counters()['fresh'], pool.counters()['reused']\n"
                          "(1, 2)")
      .def(
          "__init__", [](StepBuffers* self, nb::handle where) { new (self) StepBuffers(allocator_from(where)); },
          nb::arg("device") = "CPU")
      .def(
          "allocate",
          [](StepBuffers& self, nb::handle shape, nb::handle dtype, bool zero) {
            return self.allocate(dtype_from(dtype), shape_from(shape), {.zero = zero}).value();
          },
          nb::arg("shape"), nb::arg("dtype") = "f32", nb::kw_only(), nb::arg("zero") = false)
      .def(
          "release", [](StepBuffers& self, const Buffer& buffer) { self.release(buffer).value(); }, nb::arg("buffer"),
          "Takes a buffer back; ValueError if it is not this pool's or was returned before.")
      .def("reset", &StepBuffers::reset, "Takes everything back at the end of a step.")
      .def("clear", &StepBuffers::clear, "reset(), and lets go of all memory.")
      .def(
          "register_existing", [](StepBuffers& self, const Buffer& buffer) { self.register_existing(buffer).value(); },
          nb::arg("buffer"), "Puts a buffer from elsewhere under the device's residency.")
      .def(
          "counters",
          [](const StepBuffers& self) {
            const StepBuffersCounters counters = self.counters();
            nb::dict all;
            all["fresh"] = counters.fresh;
            all["reused"] = counters.reused;
            all["reclaimed"] = counters.reclaimed;
            all["used"] = counters.used;
            all["free"] = counters.free;
            all["registered"] = counters.registered;
            all["bytes"] = counters.bytes;
            return all;
          },
          nb::sig("def counters(self) -> dict[str, int]"));
}

}  // namespace berth::python
