#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "bindings.h"

namespace berth::python {

AllocatorPtr allocator_from(nb::handle object) {
  if (nb::isinstance<nb::str>(object)) return device(nb::cast<std::string>(object)).value();
  if (nb::isinstance<Allocator>(object)) return nb::cast<AllocatorPtr>(object);
  throw nb::type_error("a device is a name such as \"CPU\" or \"CUDA:0\", a berth.Device or an allocator around one");
}

void bind_device(nb::module_& module) {
  nb::class_<Device, Allocator>(module, "Device",
                                "A backend: where buffers live. Get one with berth.device(name).\n\n"
                                ">>> import berth\n"
                                ">>> cpu = berth.device('CPU')\n"
                                ">>> before = cpu.counters()['live_count']\n"
                                ">>> with berth.Buffer(100, 'f32', cpu):\n"
                                "...     cpu.counters()['live_count'] - before\n"
                                "1")
      .def_prop_ro(
          "name", [](const Device& self) { return std::string(self.name()); }, "Such as 'CPU' or 'CUDA:1'.")
      .def_prop_ro("description", &Device::description, "What the driver calls it.")
      .def(
          "counters",
          [](const Device& self) {
            const DeviceCounters counters = self.counters();
            nb::dict all;
            all["live_bytes"] = counters.live_bytes;
            all["live_count"] = counters.live_count;
            all["peak_bytes"] = counters.peak_bytes;
            all["pending_bytes"] = counters.pending_bytes;
            all["allocations"] = counters.allocations;
            all["releases"] = counters.releases;
            all["foreign_bytes"] = counters.foreign_bytes;
            all["foreign_count"] = counters.foreign_count;
            return all;
          },
          nb::sig("def counters(self) -> dict[str, int]"),
          "Live, peak and pending bytes, how many allocations and releases there were, and what was imported from "
          "elsewhere.\n\n"
          ">>> import berth\n"
          ">>> berth.device('CPU').counters()['live_bytes'] >= 0\n"
          "True")
      .def(
          "residency",
          [](Device& self) -> nb::object {
            Residency* residency = self.residency();
            if (residency == nullptr) return nb::none();
            const ResidencyCounters counters = residency->counters();
            nb::dict all;
            all["added"] = counters.added;
            all["removed"] = counters.removed;
            all["commits"] = counters.commits;
            all["members"] = counters.members;
            return all;
          },
          nb::sig("def residency(self) -> dict[str, int] | None"),
          "Counters of the residency set; None for a device that keeps none.")
      .def("set_budget", &Device::set_budget, nb::arg("bytes"),
           "Refuses allocations that would take live bytes past this; 0 lifts it.")
      .def(
          "synchronize", [](Device& self) { released([&] { return self.synchronize(); }).value(); },
          "Waits for all work on the device.")
      .def("__repr__", [](const Device& self) { return "<berth.Device " + to_string(self) + ">"; });

  module.def(
      "device", [](const std::string& name) { return device(name).value(); }, nb::arg("name"),
      "The device with this name: 'CPU', 'DISK:/path', 'CUDA:1', 'METAL', 'WEBGPU'.\n\n"
      ">>> import berth\n"
      ">>> berth.device('cpu')\n"
      "<berth.Device CPU>");
  module.def(
      "devices",
      [] {
        nb::list rows;
        for (const DeviceStatus& status : released(list_devices)) {
          nb::dict row;
          row["name"] = status.name;
          row["available"] = status.available;
          row["description"] = status.description;
          rows.append(row);
        }
        return rows;
      },
      nb::sig("def devices() -> list[dict[str, object]]"),
      "Every device that this build knows, available or why not.\n\n"
      ">>> import berth\n"
      ">>> [row['name'] for row in berth.devices() if row['available']][0]\n"
      "'CPU'");
}

}  // namespace berth::python
