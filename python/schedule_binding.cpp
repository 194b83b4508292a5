#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>

#include "berth/run/schedule.h"
#include "bindings.h"

namespace berth::python {
namespace {

// An exception in a step is raised by run() as a ValueError with its type and text.
Result<void> call_step(const AnyThreadObject& function, const StepRun& run) {
  const nb::gil_scoped_acquire acquire;
  try {
    function.get()(nb::cast(&run, nb::rv_policy::reference));
    return {};
  } catch (nb::python_error& error) {
    const std::string kind = nb::cast<std::string>(error.type().attr("__name__"));
    const std::string text = nb::cast<std::string>(nb::str(error.value()));
    return Error::with_text(Code::kInvalidUsage, Layer::kSchedule, kind + ": " + text);
  }
}

std::vector<Operand> operands_from(nb::handle list) {
  std::vector<Operand> operands;
  for (nb::handle item : list) {
    if (nb::isinstance<Node>(item))
      operands.emplace_back(nb::cast<Node>(item));
    else
      operands.emplace_back(buffer_from(item));
  }
  return operands;
}

nb::list lifetimes_of(const Schedule& schedule) {
  nb::list all;
  for (const Lifetime& life : lifetimes_from_schedule(schedule)) {
    nb::dict row;
    row["bytes"] = life.bytes;
    row["first"] = life.first;
    row["last"] = life.last;
    row["alignment"] = life.alignment;
    row["pinned"] = life.pinned;
    row["lane"] = life.lane;
    row["label"] = life.label;
    if (life.alias) row["alias"] = nb::make_tuple(life.alias->node, life.alias->offset);
    if (life.reuse_in_place) row["reuse_in_place"] = *life.reuse_in_place;
    all.append(row);
  }
  return all;
}

}  // namespace

void bind_schedule(nb::module_& module) {
  nb::class_<Node>(module, "Node",
                   "A value of a schedule whose memory comes from an arena.\n\n"
                   ">>> import berth\n"
                   ">>> berth.ScheduleBuilder().node(64)\n"
                   "<berth.Node 0>")
      .def_ro("id", &Node::id)
      .def("__repr__", [](const Node& self) { return fmt::format("<berth.Node {}>", self.id); });
  nb::class_<StepRun>(module, "StepRun",
                      "What a step's function is given; valid during the call.\n\n"
                      ">>> import berth\n"
                      ">>> builder = berth.ScheduleBuilder()\n"
                      ">>> node = builder.node(4, output=True)\n"
                      ">>> _ = builder.step(lambda run: run.node(node).copyin(bytes([run.step] * 4)), writes=[node])\n"
                      ">>> schedule = builder.build()\n"
                      ">>> arena = berth.Arena(berth.plan(schedule.lifetimes()))\n"
                      ">>> schedule.bind(arena).run()\n"
                      ">>> arena.buffer(node.id).tobytes()\n"
                      "b'\\x00\\x00\\x00\\x00'")
      .def_ro("step", &StepRun::step)
      .def_ro("worker", &StepRun::worker)
      .def("node", [](const StepRun& self, Node node) {
        if (node.id >= self.nodes.size()) throw nb::index_error("no such node in the arena this schedule is bound to");
        return self.nodes[node.id];
      });

  nb::class_<Schedule>(module, "Schedule",
                       "Steps in an order that keeps their bytes safe. Made by ScheduleBuilder.build().\n\n"
                       ">>> import berth\n"
                       ">>> builder = berth.ScheduleBuilder()\n"
                       ">>> buffer = berth.Buffer(4, 'u8')\n"
                       ">>> first = builder.step(lambda run: buffer.copyin(b'abcd'), writes=[buffer])\n"
                       ">>> second = builder.step(lambda run: print(buffer.tobytes()), reads=[buffer])\n"
                       ">>> schedule = builder.build()\n"
                       ">>> len(schedule), schedule.level_count, schedule.dependencies_of(second)\n"
                       "(2, 2, [0])\n"
                       ">>> schedule.run()\n"
                       "b'abcd'")
      .def("__len__", &Schedule::step_count)
      .def_prop_ro("level_count", &Schedule::level_count)
      .def(
          "level_of",
          [](const Schedule& self, StepId step) {
            if (step >= self.step_count()) throw nb::index_error("no such step");
            return self.level_of(step);
          },
          nb::arg("step"))
      .def(
          "dependencies_of",
          [](const Schedule& self, StepId step) {
            if (step >= self.step_count()) throw nb::index_error("no such step");
            return self.dependencies_of(step);
          },
          nb::arg("step"))
      .def("lifetimes", &lifetimes_of, nb::sig("def lifetimes(self) -> list[dict[str, object]]"),
           "What to give berth.plan().")
      .def(
          "bind",
          [](const Schedule& self, nb::handle arena) {
            const auto address =
                nb::cast<std::uintptr_t>(nb::module_::import_("berth._berth").attr("_arena_pointer")(arena));
            return self.bind(*reinterpret_cast<const Arena*>(address)).value();
          },
          nb::arg("arena"), nb::keep_alive<0, 2>(), nb::sig("def bind(self, arena: Arena) -> Schedule"),
          "The same steps with every node in the arena.")
      .def(
          "run",
          [](const Schedule& self, std::uint32_t workers, bool check_overlaps) {
            released([&] { return self.run({.workers = workers, .check_overlaps = check_overlaps}); }).value();
          },
          nb::arg("workers") = 0, nb::arg("check_overlaps") = false,
          "Runs all steps, in parallel where their bytes allow, and waits. A failing step's error comes out here.");

  nb::class_<ScheduleBuilder>(
      module, "ScheduleBuilder",
      "Collects steps: Python callables with what they read and write.\n\n"
      ">>> import berth\n"
      ">>> builder = berth.ScheduleBuilder()\n"
      ">>> a, b = builder.node(64), builder.node(64, output=True)\n"
      ">>> _ = builder.step(lambda run: run.node(a).copyin(bytes([1] * 64)), writes=[a])\n"
      ">>> _ = builder.step(lambda run: run.node(b).copy_from(run.node(a)), reads=[a], writes=[b])\n"
      ">>> schedule = builder.build()\n"
      ">>> arena = berth.Arena(berth.plan(schedule.lifetimes()))\n"
      ">>> schedule.bind(arena).run()\n"
      ">>> arena.buffer(b.id).tobytes()[:3]\n"
      "b'\\x01\\x01\\x01'")
      .def(
          "__init__",
          [](ScheduleBuilder* self, bool dependencies_from_bytes) {
            new (self) ScheduleBuilder({.dependencies_from_bytes = dependencies_from_bytes});
          },
          nb::arg("dependencies_from_bytes") = true)
      .def(
          "node",
          [](ScheduleBuilder& self, std::uint64_t bytes, bool output, std::uint64_t alignment,
             const std::string& label) {
            Lifetime life;
            life.bytes = bytes;
            life.alignment = alignment;
            life.label = label;
            return self.add_node(std::move(life), output ? NodeRole::kOutput : NodeRole::kTemporary);
          },
          nb::arg("bytes"), nb::kw_only(), nb::arg("output") = false, nb::arg("alignment") = 64, nb::arg("label") = "")
      .def(
          "step",
          [](ScheduleBuilder& self, nb::handle function, nb::handle reads, nb::handle writes, std::vector<StepId> after,
             const std::string& label) {
            Step step;
            step.label = label;
            step.reads = operands_from(reads);
            step.writes = operands_from(writes);
            step.after = std::move(after);
            step.run = [held = AnyThreadObject(function)](const StepRun& run) { return call_step(held, run); };
            return self.add_step(std::move(step));
          },
          nb::arg("function"), nb::kw_only(), nb::arg("reads") = nb::make_tuple(), nb::arg("writes") = nb::make_tuple(),
          nb::arg("after") = std::vector<StepId>(), nb::arg("label") = "",
          "Adds function(run); run.node(n) is a node's buffer. Returns the step's id.")
      .def("build", [](ScheduleBuilder& self) { return self.build().value(); });
}

}  // namespace berth::python
