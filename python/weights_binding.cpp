#include "weights_binding.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <optional>
#include <thread>

#include "berth/weights/save.h"

namespace berth::python {

nb::object text_of(std::string_view text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

void no_tensor(const WeightFile& file, std::string_view name) {
  const std::string text = fmt::format("no tensor named \"{}\" among the {} of {}", name, file.tensors().size(),
                                       file.files().empty() ? "a closed file" : file.files()[0]);
  PyErr_SetString(PyExc_KeyError, text.c_str());
  throw nb::python_error();
}

TensorNames::TensorNames(const WeightFile& file, nb::handle names) {
  if (names.is_none()) {
    for (const TensorInfo& info : file.tensors()) views_.push_back(info.name);
    return;
  }
  kept_ = nb::cast<std::vector<std::string>>(names);
  for (const std::string& name : kept_) {
    if (file.find(name) == nullptr) no_tensor(file, name);
    views_.push_back(name);
  }
}

namespace {

nb::object to_python(const MetadataValue& value) {
  switch (value.type()) {
    case MetadataType::kString: return text_of(value.text());
    case MetadataType::kBool: return nb::bool_(value.as_bool().value());
    case MetadataType::kF32:
    case MetadataType::kF64: return nb::float_(value.as_double().value());
    case MetadataType::kU64: return nb::cast(value.as_uint().value());
    case MetadataType::kArray: {
      nb::list all;
      for (const MetadataValue& element : value.elements()) all.append(to_python(element));
      return all;
    }
    default: return nb::cast(value.as_int().value());
  }
}

// Python values as metadata: bool, int (i64, or u64 when large), float (f64), str, and lists of one of these.
void add_value(Metadata& metadata, const std::string& key, nb::handle value) {
  const auto numbers = [&]<class T>(T) {
    std::vector<T> all;
    for (nb::handle element : value) all.push_back(nb::cast<T>(element));
    metadata.add(key, std::span<const T>(all)).value();
  };
  if (nb::isinstance<nb::str>(value)) return metadata.add(key, nb::cast<std::string>(value)).value();
  if (PyBool_Check(value.ptr()) != 0) return metadata.add(key, value.ptr() == Py_True).value();
  if (PyFloat_Check(value.ptr()) != 0) return metadata.add(key, nb::cast<double>(value)).value();
  if (PyLong_Check(value.ptr()) != 0) {
    // GGUF readers expect small counts as u32.
    const auto number = nb::cast<std::int64_t>(value);
    if (number >= 0 && number <= 0xFFFFFFFF) return metadata.add(key, static_cast<std::uint32_t>(number)).value();
    return metadata.add(key, number).value();
  }
  if (!nb::isinstance<nb::list>(value) && !nb::isinstance<nb::tuple>(value))
    throw nb::type_error(
        ("metadata \"" + key + "\" must be a str, bool, int, float or a list of one of these").c_str());
  const nb::object first = nb::len(value) == 0 ? nb::object(nb::str("")) : nb::object(value[0]);
  if (nb::isinstance<nb::str>(first)) {
    const auto all = nb::cast<std::vector<std::string>>(value);
    return metadata.add(key, std::span<const std::string>(all)).value();
  }
  if (PyFloat_Check(first.ptr()) != 0) return numbers(double{});
  return numbers(std::int64_t{});
}

Metadata metadata_from(nb::handle object) {
  Metadata metadata;
  if (object.is_none()) return metadata;
  for (auto [key, value] : nb::cast<nb::dict>(object)) add_value(metadata, nb::cast<std::string>(key), value);
  return metadata;
}

// Progress and cancellation of long work. A Python callable, if given, is called with (done, total); returning False
// cancels, raising cancels and the exception is raised by the call. Ctrl-C cancels too: the calling thread checks for
// signals whenever it gets here, and the exception of the handler is raised. Must outlive the work.
class Progress {
 public:
  explicit Progress(nb::handle callable) : callable_(callable), caller_(std::this_thread::get_id()) {}
  std::function<bool(const LoadProgress&)> callback() {
    return [this](const LoadProgress& progress) {
      const bool by_caller = std::this_thread::get_id() == caller_;
      if (callable_.is_none() && !by_caller) return true;
      const nb::gil_scoped_acquire acquire;
      if (raised_) return false;
      try {
        if (by_caller && PyErr_CheckSignals() != 0) throw nb::python_error();
        return callable_.is_none() || callable_(progress.bytes_done, progress.bytes_total).ptr() != Py_False;
      } catch (nb::python_error& error) {
        raised_.emplace(std::move(error));
        return false;
      }
    };
  }
  // Requires: the interpreter lock.
  template <class T>
  T finish(Result<T> result) {
    if (raised_) throw nb::python_error(*raised_);
    return std::move(result).value();
  }

 private:
  nb::handle callable_;
  std::thread::id caller_;
  std::optional<nb::python_error> raised_;  // under the interpreter lock
};

nb::tuple shape_of(const TensorInfo& info) {
  nb::list extents;
  for (const std::size_t extent : info.shape) extents.append(extent);
  return nb::tuple(extents);
}

nb::object load(const WeightFile& file, nb::handle names, nb::handle where, unsigned threads, bool direct,
                nb::handle progress, bool checksums) {
  const TensorNames named(file, names);
  const std::vector<std::string_view>& wanted = named.views();
  const AllocatorPtr allocator = allocator_from(where);
  Progress reported(progress);
  const LoadOptions options{
      .threads = threads, .direct = direct, .checksums = checksums, .progress = reported.callback()};
  LoadedTensors loaded = reported.finish(released([&] { return file.load(wanted, allocator, options); }));
  nb::dict buffers;
  nb::dict sums;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const nb::object name = text_of(wanted[i]);
    buffers[name] = nb::cast(std::move(loaded.buffers[i]));
    if (checksums) sums[name] = loaded.checksums[i];
  }
  if (checksums) return nb::make_tuple(buffers, sums);
  return buffers;
}

void save(const std::string& path, nb::dict tensors, nb::handle metadata, nb::handle progress) {
  std::vector<std::string> names;
  std::vector<NamedBuffer> buffers;
  names.reserve(nb::len(tensors));
  for (auto [name, tensor] : tensors) {
    names.push_back(nb::cast<std::string>(name));
    buffers.push_back({names.back(), buffer_from(tensor)});
  }
  const Metadata all = metadata_from(metadata);
  Progress reported(progress);
  const SaveOptions options{.progress = reported.callback()};
  const bool gguf = path.ends_with(".gguf");
  if (!gguf && !path.ends_with(".safetensors")) throw nb::value_error("the path must end with .safetensors or .gguf");
  reported.finish(released(
      [&] { return gguf ? save_gguf(path, buffers, all, options) : save_safetensors(path, buffers, all, options); }));
}

}  // namespace

void bind_weights(nb::module_& module) {
  // Two signatures for one function: the result depends on `checksums`.
  constexpr const char* kLoad =
      "def load(self, names: collections.abc.Sequence[str] | None = None, device: object = 'CPU', *, threads: int = 0, "
      "direct: bool = False, progress: collections.abc.Callable[[int, int], object] | None = None, checksums: "
      "typing.Literal[False] = False) -> dict[str, Buffer]";
  constexpr const char* kLoadWithChecksums =
      "def load(self, names: collections.abc.Sequence[str] | None = None, device: object = 'CPU', *, threads: int = 0, "
      "direct: bool = False, progress: collections.abc.Callable[[int, int], object] | None = None, checksums: "
      "typing.Literal[True]) -> tuple[dict[str, Buffer], dict[str, int]]";
  nb::class_<WeightFile> weight_file(
      module, "WeightFile",
      "An open weight file: a mapping from names to zero-copy buffers. Made by berth.open().\n\n"
      ">>> import berth, numpy as np, tempfile, os\n"
      ">>> path = os.path.join(tempfile.mkdtemp(), 'a.safetensors')\n"
      ">>> berth.save(path, {'w': np.ones((2, 2), np.float32), 'b': np.zeros(2, np.float32)})\n"
      ">>> file = berth.open(path)\n"
      ">>> len(file), list(file), 'w' in file, file.nbytes\n"
      "(2, ['b', 'w'], True, 24)\n"
      ">>> file['w'].is_read_only, file.load_slice('w', axis=0, begin=1, end=2).shape\n"
      "(True, (1, 2))\n"
      ">>> buffers, sums = file.load(['b'], checksums=True)\n"
      ">>> buffers['b'].tobytes() == bytes(8), sums\n"
      "(True, {'b': 1696784233})\n"
      ">>> file.close()\n"
      ">>> file\n"
      "<berth.WeightFile closed>");
  weight_file
      .def(
          "__getitem__",
          [](const WeightFile& self, std::string_view name) {
            const TensorInfo* info = self.find(name);
            if (info == nullptr) no_tensor(self, name);
            return self.tensor(*info).value();
          },
          "The tensor as a read-only view of the mapped file; nothing is read until it is touched.")
      .def("__len__", [](const WeightFile& self) { return self.tensors().size(); })
      .def("__contains__", [](const WeightFile& self, std::string_view name) { return self.find(name) != nullptr; })
      .def("__contains__", [](const WeightFile&, nb::handle) { return false; })
      .def(
          "keys",
          [](const WeightFile& self) {
            PyObject* names = PyList_New(static_cast<Py_ssize_t>(self.tensors().size()));
            if (names == nullptr) throw nb::python_error();
            const nb::object owned = nb::steal(names);
            Py_ssize_t at = 0;
            for (const TensorInfo& info : self.tensors())
              PyList_SET_ITEM(names, at++, text_of(info.name).release().ptr());
            return owned;
          },
          nb::sig("def keys(self) -> list[str]"), "Names, in the order of their bytes in the file.")
      .def(
          "__iter__", [](nb::handle self) { return nb::iter(self.attr("keys")()); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
      .def(
          "items",
          [](const WeightFile& self) {
            nb::list all;
            for (const TensorInfo& info : self.tensors())
              all.append(nb::make_tuple(text_of(info.name), self.tensor(info).value()));
            return all;
          },
          nb::sig("def items(self) -> list[tuple[str, Buffer]]"), "Names with their zero-copy buffers.")
      .def(
          "info",
          [](const WeightFile& self, std::string_view name) {
            const TensorInfo* info = self.find(name);
            if (info == nullptr) no_tensor(self, name);
            nb::dict all;
            all["dtype"] = std::string(berth::to_string(info->dtype));
            all["shape"] = shape_of(*info);
            all["offset"] = info->offset;
            all["nbytes"] = info->bytes;
            all["file"] = self.files()[info->file];
            return all;
          },
          nb::arg("name"), nb::sig("def info(self, name: str) -> dict[str, object]"),
          "dtype, shape, byte range and file of a tensor.")
      .def_prop_ro(
          "metadata",
          [](const WeightFile& self) {
            nb::dict all;
            for (const MetadataEntry& entry : self.metadata()) all[text_of(entry.key)] = to_python(entry.value);
            return all;
          },
          nb::sig("def metadata(self) -> dict[str, object]"), "All metadata as Python values.")
      .def_prop_ro("format", [](const WeightFile& self) { return std::string(to_string(self.format())); })
      .def_prop_ro(
          "files",
          [](const WeightFile& self) { return std::vector<std::string>(self.files().begin(), self.files().end()); })
      .def_prop_ro("nbytes", &WeightFile::total_bytes, "Sum over all tensors.")
      .def("load", &load, nb::arg("names").none() = nb::none(), nb::arg("device") = "CPU", nb::kw_only(),
           nb::arg("threads") = 0, nb::arg("direct") = false, nb::arg("progress").none() = nb::none(),
           nb::arg("checksums") = false, nb::sig(kLoad),
           "Reads tensors (all by default) into fresh memory of a device, in parallel.\n\n"
           "progress(done, total) may return False to cancel. With checksums, returns (buffers, crc32 by name).")
      .def("load", &load, nb::arg("names").none() = nb::none(), nb::arg("device") = "CPU", nb::kw_only(),
           nb::arg("threads") = 0, nb::arg("direct") = false, nb::arg("progress").none() = nb::none(),
           nb::arg("checksums"), nb::sig(kLoadWithChecksums))
      .def(
          "load_slice",
          [](const WeightFile& self, std::string_view name, std::size_t axis, std::size_t begin, std::size_t end,
             nb::handle where) {
            if (self.find(name) == nullptr) no_tensor(self, name);
            const AllocatorPtr allocator = allocator_from(where);
            Progress reported{nb::handle(Py_None)};
            const LoadOptions options{.progress = reported.callback()};
            return reported.finish(released([&] {
              return self.load_slice(name, {axis, begin, end}, allocator, options);
            }));
          },
          nb::arg("name"), nb::arg("axis"), nb::arg("begin"), nb::arg("end"), nb::arg("device") = "CPU",
          "Indices [begin, end) of one axis of a tensor, reading only their bytes.")
      .def(
          "close", [](WeightFile& self) { self = WeightFile(); }, "Closes the file; buffers from it stay good.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> WeightFile"))
      .def(
          "__exit__", [](WeightFile& self, nb::args) { self = WeightFile(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const WeightFile& self) {
        if (self.files().empty()) return std::string("<berth.WeightFile closed>");
        return fmt::format("<berth.WeightFile {} {}, {} tensors, {}>", to_string(self.format()), self.files()[0],
                           self.tensors().size(), format_bytes(self.total_bytes()));
      });

  bind_async_load(module, weight_file);

  module.def(
      "_open", [](const std::string& path) { return released([&] { return open_weights(path); }).value(); },
      nb::arg("path"));
  module.def("_save", &save, nb::arg("path"), nb::arg("tensors"), nb::arg("metadata").none() = nb::none(),
             nb::arg("progress").none() = nb::none());
  module.def(
      "_convert",
      [](const std::string& source, const std::string& target, nb::handle progress) {
        Progress reported(progress);
        const SaveOptions options{.progress = reported.callback()};
        reported.finish(released([&]() -> Result<void> {
          auto file = open_weights(source);
          if (!file) return file.error();
          return convert_weights(*file, target, options);
        }));
      },
      nb::arg("source"), nb::arg("target"), nb::arg("progress").none() = nb::none());
}

}  // namespace berth::python
