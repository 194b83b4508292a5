#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "berth/run/arena.h"
#include "bindings.h"
#include "plan_binding.h"

namespace berth::python {
namespace {

// An arena with the queue that its transfers go through.
struct ArenaOnQueue {
  Arena arena;
  Queue* queue;
};

Shadow shadow_from(const std::string& text) {
  if (text == "auto") return Shadow::kAuto;
  if (text == "on") return Shadow::kOn;
  if (text == "off") return Shadow::kOff;
  throw nb::value_error("shadow is 'auto', 'on' or 'off'");
}

}  // namespace

void bind_arena(nb::module_& module) {
  nb::class_<ArenaOnQueue>(module, "Arena",
                           "A plan made real: memory with a slot for each node, on any device.\n\n"
                           ">>> import berth, numpy as np\n"
                           ">>> plan = berth.plan([(16, 0, 1), (16, 0, 1)])\n"
                           ">>> arena = berth.Arena(plan)\n"
                           ">>> arena.write_f32(1, np.arange(4, dtype=np.float32))\n"
                           ">>> arena.buffer(1).numpy()\n"
                           "array([0., 1., 2., 3.], dtype=float32)")
      .def(
          "__init__",
          [](ArenaOnQueue* self, const PlannedProblem& plan, nb::handle where, const std::string& shadow, bool zero,
             const std::string& label) {
            const AllocatorPtr allocator = allocator_from(where);
            ArenaOptions options;
            options.f16_shadow = shadow_from(shadow);
            options.zero = zero;
            options.label = Name(label);
            Arena arena = released([&] { return Arena::from_plan(allocator, plan.plan, options); }).value();
            new (self) ArenaOnQueue{std::move(arena), allocator->device().default_queue().value()};
          },
          nb::arg("plan"), nb::arg("device") = "CPU", nb::kw_only(), nb::arg("shadow") = "auto",
          nb::arg("zero") = false, nb::arg("label") = "arena")
      .def(
          "has", [](const ArenaOnQueue& self, NodeId node) { return self.arena.has(node); }, nb::arg("node"))
      .def(
          "offset", [](const ArenaOnQueue& self, NodeId node) { return self.arena.offset(node).value(); },
          nb::arg("node"))
      .def(
          "len_of", [](const ArenaOnQueue& self, NodeId node) { return self.arena.len_of(node).value(); },
          nb::arg("node"), "Bytes of data in the node's slot.")
      .def(
          "set_actual_len",
          [](ArenaOnQueue& self, NodeId node, std::size_t bytes) { self.arena.set_actual_len(node, bytes).value(); },
          nb::arg("node"), nb::arg("bytes"))
      .def(
          "buffer", [](const ArenaOnQueue& self, NodeId node) { return self.arena.buffer(node).value(); },
          nb::arg("node"), "The node's bytes as a view: f32 where they are whole floats, else u8.")
      .def(
          "whole", [](const ArenaOnQueue& self, std::size_t block) { return self.arena.whole(block).value(); },
          nb::arg("block") = 0)
      .def_prop_ro("nbytes", [](const ArenaOnQueue& self) { return self.arena.total_size(); })
      .def_prop_ro("shadow_nbytes", [](const ArenaOnQueue& self) { return self.arena.shadow_size(); })
      .def(
          "write_f32",
          [](const ArenaOnQueue& self, NodeId node, nb::handle data) {
            const nb::object array =
                nb::module_::import_("numpy").attr("ascontiguousarray")(data, nb::arg("dtype") = "float32");
            const HostBytes host(array, false);
            const auto bytes = host.bytes();
            released([&] {
              return self.arena.write_f32(*self.queue, node,
                                          {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)});
            }).value();
          },
          nb::arg("node"), nb::arg("data"), "Writes floats to the node, and to its f16 shadow where there is one.")
      .def(
          "read_f32",
          [](const ArenaOnQueue& self, NodeId node) {
            const std::size_t count = self.arena.len_of(node).value() / sizeof(float);
            const nb::object array = nb::module_::import_("numpy").attr("empty")(count, "float32");
            const HostBytes host(array, true);
            const std::span<float> target(reinterpret_cast<float*>(host.bytes().data()), count);
            released([&] { return self.arena.read_f32(*self.queue, node, target); }).value();
            return array;
          },
          nb::arg("node"), nb::sig("def read_f32(self, node: int) -> numpy.typing.NDArray[numpy.float32]"),
          "The node's floats as a new NumPy array.")
      .def(
          "shadow",
          [](const ArenaOnQueue& self, NodeId node) {
            Buffer half = released([&] { return self.arena.shadow(*self.queue, node); }).value();
            released([&] { return self.queue->finish(); }).value();
            return half;
          },
          nb::arg("node"), "The node's data as f16, converted anew when it is stale.")
      .def("__repr__", [](const ArenaOnQueue& self) {
        return fmt::format("<berth.Arena {} nodes in {}>", self.arena.node_count(),
                           format_bytes(self.arena.total_size()));
      });

  // Schedules bind to the arena itself.
  module.def("_arena_pointer", [](const ArenaOnQueue& self) { return reinterpret_cast<std::uintptr_t>(&self.arena); });
}

}  // namespace berth::python
