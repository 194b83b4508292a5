#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <unordered_map>

#include "berth/weights/async_load.h"
#include "weights_binding.h"

namespace berth::python {
namespace {

// Python has no timepoints: a buffer is handed out when its bytes are there, so that nobody sees memory half written.
class BackgroundLoad {
 public:
  BackgroundLoad(const WeightFile& file, nb::handle names, nb::handle where, const AsyncLoadOptions& options) {
    const TensorNames named(file, names);
    for (const std::string_view name : named.views())
      if (numbers_.try_emplace(std::string(name), names_.size()).second) names_.emplace_back(name);
    const std::vector<std::string_view> wanted(names_.begin(), names_.end());
    const AllocatorPtr allocator = allocator_from(where);
    load_ = std::make_shared<AsyncLoad>(released([&] { return load_async(file, wanted, allocator, options); }).value());
  }
  BackgroundLoad(BackgroundLoad&&) noexcept = default;
  // Waits for the readers.
  ~BackgroundLoad() {
    if (load_ == nullptr) return;
    const nb::gil_scoped_release release;
    load_.reset();
  }

  const std::vector<std::string>& names() const noexcept { return names_; }
  bool contains(const std::string& name) const { return numbers_.contains(name); }
  AsyncLoad& load() const noexcept { return *load_; }

  std::size_t number_of(const std::string& name) const {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    const std::string text = fmt::format("no tensor named \"{}\" among the {} that are loaded", name, names_.size());
    PyErr_SetString(PyExc_KeyError, text.c_str());
    throw nb::python_error();
  }

  // Waits for a tensor. A signal such as Ctrl-C ends the wait, and not the load.
  Buffer wait_for(std::size_t number) const {
    const std::shared_ptr<AsyncLoad> kept = load_;
    while (!released([&] { return kept->wait(number, std::chrono::milliseconds(50)); }).value())
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return kept->buffers()[number];
  }

  nb::dict finish() const {
    nb::dict buffers;
    if (!names_.empty()) wait_for(names_.size() - 1);
    for (std::size_t i = 0; i < names_.size(); ++i) buffers[text_of(names_[i])] = nb::cast(load_->buffers()[i]);
    return buffers;
  }

  void close() const {
    const std::shared_ptr<AsyncLoad> kept = load_;
    released([&] {
      kept->cancel();
      return kept->finish().has_value();
    });
  }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::shared_ptr<AsyncLoad> load_;  // shared with waits, which do not hold the interpreter lock
};

nb::list names_of(const BackgroundLoad& load) {
  nb::list all;
  for (const std::string& name : load.names()) all.append(text_of(name));
  return all;
}

// Names and buffers, each when it has arrived.
nb::object items_of(nb::handle self) {
  const nb::object builtins = nb::module_::import_("builtins");
  const auto item = [load = nb::borrow(self)](std::size_t number) {
    const auto& from = nb::cast<const BackgroundLoad&>(load);
    return nb::make_tuple(text_of(from.names()[number]), from.wait_for(number));
  };
  return builtins.attr("map")(nb::cpp_function(item), builtins.attr("range")(nb::len(self)));
}

ReadMethod method_from(std::string_view name) {
  for (const ReadMethod method : {ReadMethod::kThreads, ReadMethod::kRing})
    if (name == to_string(method)) return method;
  throw nb::value_error(R"(method must be "threads" or "ring")");
}

}  // namespace

void bind_async_load(nb::module_& module, nb::class_<WeightFile>& file) {
  nb::class_<BackgroundLoad>(
      module, "AsyncLoad",
      "A load in the background: a mapping from names to buffers, each of which can be waited for. Made by\n"
      "berth.load_async() and WeightFile.load_async().\n\n"
      "Tensors arrive in the order requested. Leaving the `with` block, or dropping the load, stops it; buffers\n"
      "that were handed out stay good.\n\n"
      ">>> import berth, numpy as np, tempfile, os\n"
      ">>> path = os.path.join(tempfile.mkdtemp(), 'a.safetensors')\n"
      ">>> berth.save(path, {'w': np.ones((2, 2), np.float32), 'b': np.zeros(2, np.float32)})\n"
      ">>> with berth.open(path) as file, file.load_async(['w', 'b']) as load:\n"
      "...     for name, buffer in load.items():  # while the next ones are read\n"
      "...         print(name, buffer.numpy().sum())\n"
      "w 4.0\n"
      "b 0.0\n"
      ">>> load.has_arrived('w'), load['w'].shape, len(load), list(load)\n"
      "(True, (2, 2), 2, ['w', 'b'])")
      .def(
          "__getitem__",
          [](const BackgroundLoad& self, const std::string& name) { return self.wait_for(self.number_of(name)); },
          "Waits until the tensor has arrived, and returns it. OSError if it cannot be read, InterruptedError after\n"
          "cancel().")
      .def(
          "has_arrived",
          [](const BackgroundLoad& self, const std::string& name) {
            return is_reached(self.load().arrivals()[self.number_of(name)]);
          },
          nb::arg("name"), "Whether the tensor, and all before it, hold their bytes.")
      .def("__len__", [](const BackgroundLoad& self) { return self.names().size(); })
      .def("__contains__", [](const BackgroundLoad& self, const std::string& name) { return self.contains(name); })
      .def("__contains__", [](const BackgroundLoad&, nb::handle) { return false; })
      .def("keys", &names_of, nb::sig("def keys(self) -> list[str]"), "Names, in the order in which they arrive.")
      .def(
          "__iter__", [](const BackgroundLoad& self) { return nb::iter(names_of(self)); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
      .def("items", &items_of, nb::sig("def items(self) -> collections.abc.Iterator[tuple[str, Buffer]]"),
           "Names with their buffers, each when it has arrived.")
      .def("finish", &BackgroundLoad::finish, nb::sig("def finish(self) -> dict[str, Buffer]"),
           "Waits until all tensors have arrived, and returns them.")
      .def(
          "cancel", [](const BackgroundLoad& self) { self.load().cancel(); },
          "Ends reading soon. Tensors that have arrived stay good; waiting for another is an InterruptedError.")
      .def_prop_ro(
          "method", [](const BackgroundLoad& self) { return std::string(to_string(self.load().method())); },
          "'threads' or 'ring': what is used.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> AsyncLoad"))
      .def(
          "__exit__", [](const BackgroundLoad& self, nb::args) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const BackgroundLoad& self) {
        std::size_t arrived = 0;
        for (const Timepoint arrival : self.load().arrivals()) arrived += is_reached(arrival) ? 1 : 0;
        return fmt::format("<berth.AsyncLoad {} of {} tensors arrived>", arrived, self.names().size());
      });

  file.def(
      "load_async",
      [](const WeightFile& self, nb::handle names, nb::handle where, unsigned readers, std::string_view method) {
        return BackgroundLoad(self, names, where, {.method = method_from(method), .readers = readers});
      },
      nb::arg("names").none() = nb::none(), nb::arg("device") = "CPU", nb::kw_only(), nb::arg("readers") = 0,
      nb::arg("method") = "threads",
      nb::sig("def load_async(self, names: collections.abc.Sequence[str] | None = None, device: object = 'CPU', *, "
              "readers: int = 0, method: str = 'threads') -> AsyncLoad"),
      "Begins to read tensors (all by default) into fresh memory of a device, and returns at once.\n\n"
      "They arrive in the order requested. method='ring' reads by io_uring where the kernel allows it.");
}

}  // namespace berth::python
