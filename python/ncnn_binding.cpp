// Berth as the memory of the engine inside the ncnn package. That engine exports nothing, but its binding lets Python
// override the two functions of its allocators, so Python (berth/ncnn.py) passes each request and release to this
// module. Addresses travel as capsules, which is what the engine's binding makes of a void*.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "berth/engines/engine_memory.h"
#include "bindings.h"
#include "engine_runs.h"

namespace berth::python {
namespace {

class NcnnMemory {
 public:
  NcnnMemory() : memory_(engines::EngineMemory::create().value()), runs_(memory_.replay()) {}

  // None without memory: the engine then fails the layer.
  nb::object allocate(std::uint64_t bytes) {
    void* memory = memory_.allocate(bytes);
    return memory == nullptr ? nb::object(nb::none()) : nb::object(nb::capsule(memory));
  }
  void release(nb::handle memory) {
    if (memory.is_none()) return;
    void* address = PyCapsule_GetPointer(memory.ptr(), nullptr);
    if (address == nullptr) throw nb::python_error();
    if (!memory_.replay().owns(address))
      raise(Error(Code::kNotOwned, Layer::kEngine, "this memory is not live, or was not allocated here"));
    memory_.release(address);
  }

  void begin(const std::string& kind, const std::vector<std::int64_t>& dimensions) { runs_.begin(kind, dimensions); }
  // Nothing is planned here: mats of the run may still be there, and most are gone when the next one begins.
  void end(const std::string& kind, std::vector<std::int64_t> dimensions) {
    runs_.end(kind, std::move(dimensions), false);
  }
  nb::dict report() const { return runs_.report(); }
  std::uint64_t give_back() { return memory_.replay().give_back(true); }

 private:
  engines::EngineMemory memory_;
  EngineRuns runs_;
};

}  // namespace

void bind_ncnn(nb::module_& module) {
  nb::class_<NcnnMemory>(module, "_NcnnMemory", "Behind berth.ncnn.Memory.")
      .def(nb::init<>())
      .def("allocate", &NcnnMemory::allocate, nb::arg("size"))
      .def("release", &NcnnMemory::release, nb::arg("ptr").none())
      .def("begin", &NcnnMemory::begin, nb::arg("kind"), nb::arg("dimensions"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("end", &NcnnMemory::end, nb::arg("kind"), nb::arg("dimensions"), nb::call_guard<nb::gil_scoped_release>())
      .def("report", &NcnnMemory::report)
      .def("give_back", &NcnnMemory::give_back, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace berth::python
