#include "plan_binding.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "berth/plan/memory_map.h"
#include "bindings.h"

namespace berth::python {
namespace {

template <class T>
void take(nb::handle value, T& into) {
  if (!value.is_none()) into = nb::cast<T>(value);
}

Lifetime lifetime_from(nb::handle object) {
  Lifetime life;
  if (nb::isinstance<nb::dict>(object)) {
    for (auto [key, value] : nb::borrow<nb::dict>(object)) {
      const std::string name = nb::cast<std::string>(key);
      if (name == "bytes")
        take(value, life.bytes);
      else if (name == "first")
        take(value, life.first);
      else if (name == "last")
        take(value, life.last);
      else if (name == "alignment")
        take(value, life.alignment);
      else if (name == "lane")
        take(value, life.lane);
      else if (name == "pinned")
        take(value, life.pinned);
      else if (name == "label")
        take(value, life.label);
      else if (name == "offset")
        life.offset = nb::cast<std::optional<std::uint64_t>>(value);
      else if (name == "hint")
        life.hint = nb::cast<std::optional<std::uint64_t>>(value);
      else if (name == "reuse_in_place")
        life.reuse_in_place = nb::cast<std::optional<std::uint32_t>>(value);
      else if (name == "alias")
        life.alias = AliasOf{nb::cast<std::uint32_t>(value[0]), nb::cast<std::uint64_t>(value[1])};
      else
        throw nb::value_error(("a lifetime has no field \"" + name + "\"").c_str());
    }
    return life;
  }
  if (nb::len(object) != 3) throw nb::value_error("a lifetime is (bytes, first, last) or a dict with these keys");
  life.bytes = nb::cast<std::uint64_t>(object[0]);
  life.first = nb::cast<std::int64_t>(object[1]);
  life.last = nb::cast<std::int64_t>(object[2]);
  return life;
}

// Columns of a NumPy structured array: bytes, first, last and, where they are there, alignment and lane.
void lifetimes_from_array(nb::handle array, std::vector<Lifetime>& lifetimes) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const std::size_t count = nb::len(array);
  lifetimes.resize(count);
  const nb::object names = array.attr("dtype").attr("names");
  const auto column = [&](const char* name, bool required, auto put) {
    if (!nb::cast<bool>(names.attr("__contains__")(name))) {
      if (required) throw nb::value_error((std::string("the array has no field \"") + name + "\"").c_str());
      return;
    }
    const nb::object values = numpy.attr("ascontiguousarray")(array[name], nb::arg("dtype") = "int64");
    const HostBytes bytes(values, false);
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t value;
      std::memcpy(&value, bytes.bytes().data() + i * 8, 8);
      put(lifetimes[i], value);
    }
  };
  column("bytes", true, [](Lifetime& life, std::int64_t value) { life.bytes = static_cast<std::uint64_t>(value); });
  column("first", true, [](Lifetime& life, std::int64_t value) { life.first = value; });
  column("last", true, [](Lifetime& life, std::int64_t value) { life.last = value; });
  column("alignment", false,
         [](Lifetime& life, std::int64_t value) { life.alignment = static_cast<std::uint64_t>(value); });
  column("lane", false, [](Lifetime& life, std::int64_t value) { life.lane = static_cast<std::uint32_t>(value); });
  column("pinned", false, [](Lifetime& life, std::int64_t value) { life.pinned = value != 0; });
}

PlannedProblem make_plan(nb::handle lifetimes, std::optional<std::uint64_t> capacity, std::uint64_t alignment,
                         std::uint64_t max_block_bytes, std::optional<double> time_limit,
                         std::optional<std::uint64_t> work_limit, unsigned threads, std::uint64_t seed, bool smallest,
                         const std::optional<std::string>& strategy) {
  PlannedProblem planned;
  if (nb::hasattr(lifetimes, "dtype"))
    lifetimes_from_array(lifetimes, planned.problem.lifetimes);
  else
    for (nb::handle life : lifetimes) planned.problem.lifetimes.push_back(lifetime_from(life));
  planned.problem.capacity = capacity;
  planned.problem.alignment = alignment;
  planned.problem.max_block_bytes = max_block_bytes;
  PlanOptions options;
  options.time_limit = time_limit;
  options.work_limit = work_limit;
  options.threads = threads;
  options.seed = seed;
  options.smallest = smallest;
  planned.plan = released([&] {
                   return strategy ? plan_with(*strategy, planned.problem, options) : plan(planned.problem, options);
                 }).value();
  return planned;
}

std::string html(const PlannedProblem& self, const std::string& title) {
  return memory_map_html({.title = title, .panels = {map_panel(self.problem, self.plan)}});
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '"')
      safe += "&quot;";
    else
      safe += c;
  }
  return safe;
}

}  // namespace

void bind_plan(nb::module_& module) {
  nb::class_<PlannedProblem>(module, "Plan",
                             "Where each buffer goes in one block of memory. Made by berth.plan().\n\n"
                             ">>> import berth\n"
                             ">>> plan = berth.plan([(4096, 0, 2), (4096, 2, 4)])\n"
                             ">>> plan.size, plan.offsets, plan.optimal\n"
                             "(4096, [0, 0], True)\n"
                             ">>> plan.validate()\n"
                             ">>> plan.to_html('my plan').startswith('<!')\n"
                             "True")
      .def_prop_ro(
          "size", [](const PlannedProblem& self) { return self.plan.size; }, "Bytes of all blocks together.")
      .def_prop_ro(
          "lower_bound", [](const PlannedProblem& self) { return self.plan.lower_bound; }, "No plan is smaller.")
      .def_prop_ro(
          "optimal", [](const PlannedProblem& self) { return self.plan.optimal; }, "size == lower_bound")
      .def_prop_ro(
          "gap", [](const PlannedProblem& self) { return self.plan.gap(); }, "How far above the bound.")
      .def_prop_ro("strategy", [](const PlannedProblem& self) { return self.plan.strategy; })
      .def_prop_ro("seconds", [](const PlannedProblem& self) { return self.plan.seconds; })
      .def_prop_ro("fingerprint", [](const PlannedProblem& self) { return self.plan.fingerprint; })
      .def_prop_ro(
          "offsets",
          [](const PlannedProblem& self) {
            std::vector<std::uint64_t> offsets;
            offsets.reserve(self.plan.slots.size());
            for (const Slot& slot : self.plan.slots) offsets.push_back(slot.offset);
            return offsets;
          },
          "The offset of each node in its block, in the order given.")
      .def_prop_ro(
          "blocks",
          [](const PlannedProblem& self) {
            std::vector<std::uint64_t> sizes;
            for (const PlanBlock& block : self.plan.blocks) sizes.push_back(block.bytes);
            return sizes;
          },
          "Bytes of each block to allocate.")
      .def(
          "slot",
          [](const PlannedProblem& self, std::size_t node) {
            if (!self.plan.has(node)) throw nb::index_error("the node has no slot in this plan");
            const Slot& slot = self.plan.slots[node];
            return nb::make_tuple(slot.block, slot.offset, slot.bytes);
          },
          nb::arg("node"), nb::sig("def slot(self, node: int) -> tuple[int, int, int]"),
          "(block, offset, bytes) of a node.")
      .def(
          "validate",
          [](const PlannedProblem& self) {
            const Violation violation = released([&] { return validate(self.problem, self.plan); });
            if (violation)
              raise(Error::with_text(Code::kInvalidData, Layer::kPlan, describe(violation, self.problem, self.plan)));
          },
          "Checks every rule with code of its own; ValueError names what is wrong.")
      .def("to_html", &html, nb::arg("title") = "Memory map", "An interactive memory map as one HTML page.")
      .def(
          "_repr_html_",
          [](const PlannedProblem& self) {
            return "<iframe style=\"width:100%;height:560px;border:0\" srcdoc=\"" + escaped(html(self, "Memory map")) +
                   "\"></iframe>";
          },
          "What a notebook shows.")
      .def("__len__", [](const PlannedProblem& self) { return self.plan.slots.size(); })
      .def("__repr__", [](const PlannedProblem& self) { return "<berth.Plan " + to_string(self.plan) + ">"; });

  module.def(
      "plan", &make_plan, nb::arg("lifetimes"), nb::kw_only(), nb::arg("capacity").none() = nb::none(),
      nb::arg("alignment") = 1, nb::arg("max_block_bytes") = 0, nb::arg("time_limit").none() = nb::none(),
      nb::arg("work_limit").none() = nb::none(), nb::arg("threads") = 0, nb::arg("seed") = 0,
      nb::arg("smallest") = false, nb::arg("strategy").none() = nb::none(),
      "Plans memory for buffers that live during levels [first, last).\n\n"
      "`lifetimes` is a list of (bytes, first, last) or of dicts (bytes, first, last, alignment, offset, pinned,\n"
      "lane, alias, reuse_in_place, hint, label), or a NumPy structured array with these columns.\n\n"
      ">>> import berth\n"
      ">>> p = berth.plan([(4096, 0, 2), (8192, 1, 3), (4096, 2, 4)])\n"
      ">>> p\n"
      "<berth.Plan 3 buffers in 12.0 KiB, optimal>\n"
      ">>> p.size == p.lower_bound == 12288\n"
      "True");
}

}  // namespace berth::python
