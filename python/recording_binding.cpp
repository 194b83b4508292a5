#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "berth/alloc/recording.h"
#include "bindings.h"

namespace berth::python {
namespace {

// Allocations and frees counted in events: the lifetimes that berth.plan() takes.
nb::list lifetimes_of(const Recording& recording) {
  struct Life {
    std::size_t bytes, first, last;
  };
  std::vector<Life> lives(recording.blocks);
  for (std::size_t at = 0; at < recording.events.size(); ++at) {
    const RecordedEvent& event = recording.events[at];
    if (event.is_free)
      lives[event.block].last = at;
    else
      lives[event.block] = {event.bytes, at, recording.events.size()};
  }
  nb::list all;
  for (const Life& life : lives) all.append(nb::make_tuple(life.bytes, life.first, life.last));
  return all;
}

nb::dict event_dict(const Recording& recording, const RecordedEvent& event) {
  nb::dict row;
  row["kind"] = event.is_free ? "free" : "allocate";
  row["time_ns"] = event.time_ns;
  row["thread"] = event.thread;
  row["block"] = event.block;
  if (event.is_free) return row;
  row["nbytes"] = event.bytes;
  row["alignment"] = event.alignment;
  row["label"] = recording.labels[event.label];
  return row;
}

}  // namespace

void bind_recording(nb::module_& module) {
  nb::class_<Recorder, Allocator>(module, "Recorder",
                                  "Records every allocation and free to a file. Made by berth.record().\n\n"
                                  ">>> import berth, tempfile, os\n"
                                  ">>> path = os.path.join(tempfile.mkdtemp(), 'run.trace')\n"
                                  ">>> recorder = berth.record(path)\n"
                                  ">>> berth.Buffer(100, 'u8', recorder).release()\n"
                                  ">>> recorder.flush()\n"
                                  ">>> os.path.getsize(path) > 0\n"
                                  "True")
      .def(
          "flush", [](Recorder& self) { released([&] { return self.flush(); }).value(); },
          "Writes what is buffered; OSError if a write failed, now or before.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Recorder"))
      .def(
          "__exit__", [](Recorder& self, nb::args) { released([&] { return self.flush(); }).value(); },
          nb::sig("def __exit__(self, *args: object) -> None"));

  nb::class_<Recording>(module, "Recording",
                        "A trace that was read: its events in order. Made by berth.read_recording().\n\n"
                        ">>> import berth, tempfile, os\n"
                        ">>> path = os.path.join(tempfile.mkdtemp(), 'run.trace')\n"
                        ">>> with berth.record(path) as recorder:\n"
                        "...     berth.Buffer(100, 'u8', recorder).release()\n"
                        ">>> recording = berth.read_recording(path)\n"
                        ">>> [event['kind'] for event in recording], recording.blocks, recording.lifetimes()\n"
                        "(['allocate', 'free'], 1, [(100, 0, 1)])")
      .def("__len__", [](const Recording& self) { return self.events.size(); })
      .def(
          "__getitem__",
          [](const Recording& self, std::ptrdiff_t index) {
            const auto size = static_cast<std::ptrdiff_t>(self.events.size());
            if (index < 0) index += size;
            if (index < 0 || index >= size) throw nb::index_error("the recording has no such event");
            return event_dict(self, self.events[static_cast<std::size_t>(index)]);
          },
          nb::arg("index"), nb::sig("def __getitem__(self, index: int) -> dict[str, object]"),
          "kind ('allocate' or 'free'), time_ns, thread and block of an event; of an allocation also nbytes, alignment "
          "and label.")
      .def_prop_ro(
          "blocks", [](const Recording& self) { return self.blocks; }, "How many allocations there are.")
      .def("lifetimes", &lifetimes_of, nb::sig("def lifetimes(self) -> list[tuple[int, int, int]]"),
           "(bytes, first, last) of each allocation, counted in events: what berth.plan() takes.")
      .def(
          "replay",
          [](const Recording& self, nb::handle where) {
            const AllocatorPtr allocator = allocator_from(where);
            const RecordingReport report = released([&] { return run_recording(self, *allocator); });
            nb::dict all;
            all["peak_live_bytes"] = report.peak_live_bytes;
            all["peak_held_bytes"] = report.peak_held_bytes;
            all["fragmentation"] = report.fragmentation;
            all["seconds"] = report.seconds;
            all["failures"] = report.failures;
            return all;
          },
          nb::arg("allocator") = "CPU", nb::sig("def replay(self, allocator: object = 'CPU') -> dict[str, object]"),
          "Runs the recording against an allocator: peak_live_bytes, peak_held_bytes, fragmentation, seconds and "
          "failures.")
      .def("__repr__", [](const Recording& self) {
        return fmt::format("<berth.Recording {} events, {} allocations>", self.events.size(), self.blocks);
      });

  module.def(
      "_record",
      [](nb::handle inner, const std::string& path) { return make_recorder(allocator_from(inner), path).value(); },
      nb::arg("inner"), nb::arg("path"));
  module.def(
      "_read_recording", [](const std::string& path) { return released([&] { return read_recording(path); }).value(); },
      nb::arg("path"));
}

}  // namespace berth::python
