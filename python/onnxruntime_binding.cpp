// Berth as the memory of the engine inside the onnxruntime package. That engine exports nothing, but it opens libraries
// of execution providers and gives each its interface. This module is such a library, one without a provider: Python
// has the engine open it, and berth/onnxruntime then makes Berth the memory of the engine's environment. The engine has
// one environment per process, which ends with the process, and so does the memory: an output may outlive its session.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/try.h"
#include "berth/engines/onnxruntime.h"
#include "bindings.h"
#include "engine_runs.h"
#include "engines/onnxruntime_abi.h"
#include "engines/onnxruntime_library.h"

namespace ort = berth::internal::ort;

namespace {

// Set by the engine, from whichever thread makes it open this module.
std::atomic<const ort::ApiBase*> engine_interface{nullptr};

}  // namespace

// The two functions of a library of execution providers. The lock of the environment is held during both, so nothing
// may be registered here.
extern "C" {
__attribute__((visibility("default"))) ort::Status* CreateEpFactories(const char* /*name*/, const ort::ApiBase* base,
                                                                      const void* /*logger*/, void** /*factories*/,
                                                                      std::size_t /*max_factories*/,
                                                                      std::size_t* count);
__attribute__((visibility("default"))) ort::Status* ReleaseEpFactory(void* /*factory*/);
}

ort::Status* CreateEpFactories(const char* /*name*/, const ort::ApiBase* base, const void* /*logger*/,
                               void** /*factories*/, std::size_t /*max_factories*/, std::size_t* count) {
  engine_interface.store(base);
  *count = 0;
  return nullptr;
}

ort::Status* ReleaseEpFactory(void* /*factory*/) {
  return nullptr;
}

namespace berth::python {

using namespace internal;

namespace {

using engines::OnnxRuntimeMemory;

// The memory of the engine's environment. Never destroyed.
struct EngineMemory {
  std::unique_ptr<OnnxRuntimeMemory> memory;
};
std::atomic<EngineMemory*> engine_memory{nullptr};

EngineMemory& attached() {
  EngineMemory* memory = engine_memory.load();
  if (memory == nullptr)
    raise(Error(Code::kDeviceUnavailable, Layer::kEngine, "the engine has not been given Berth's memory yet"));
  return *memory;
}

Result<void> attach(const ReplayOptions& replay) {
  static std::mutex once;
  const std::lock_guard guard(once);
  if (engine_memory.load() != nullptr) return {};
  const ort::ApiBase* base = engine_interface.load();
  if (base == nullptr)
    return Error(Code::kDeviceUnavailable, Layer::kEngine, "the engine has not opened this module: register it first");
  const ort::Api* api = base->get_api(ort::kApiVersion);
  if (api == nullptr)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kEngine,
                            "ONNX Runtime 1." + std::to_string(ort::kApiVersion) + " or newer is needed, this is " +
                                base->get_version() + ": pip install -U onnxruntime");
  ort::Env* environment = nullptr;  // the one that exists, counted once more
  BERTH_TRY(ort::check(*api, api->create_env(2, "berth", &environment), "give its environment"));
  auto made = std::make_unique<EngineMemory>();
  engines::OnnxRuntimeOptions options;
  options.replay = replay;
  BERTH_TRY_ASSIGN(made->memory, OnnxRuntimeMemory::attach(reinterpret_cast<const OrtApi*>(api),
                                                           reinterpret_cast<OrtEnv*>(environment), std::move(options)));
  engine_memory.store(made.release());
  return {};
}

class SessionRuns {
 public:
  SessionRuns() : engine_(attached()), runs_(engine_.memory->replay()) {}

  void begin(const std::string& kind, const std::vector<std::int64_t>& dimensions) { runs_.begin(kind, dimensions); }
  // The outputs of a run are released when it ends, or kept for good.
  void end(const std::string& kind, std::vector<std::int64_t> dimensions, bool failed) {
    runs_.end(kind, std::move(dimensions), true, failed);
  }
  nb::dict report() const {
    nb::dict fields = runs_.report();
    fields["weight_bytes"] = engine_.memory->weight_bytes();
    return fields;
  }

 private:
  EngineMemory& engine_;
  EngineRuns runs_;
};

// Sessions that the calling thread creates between its construction and end().
class SessionLoad {
 public:
  explicit SessionLoad(const std::string& folder) : load_(std::in_place, *attached().memory, folder) {}
  nb::dict end() {
    engines::SharedWeights shared;
    if (load_) shared = released([&] { return load_->end(); });
    load_.reset();
    nb::dict fields;
    fields["bytes"] = shared.bytes;
    fields["shared"] = shared.shared;
    fields["problem"] = shared.problem.empty() ? nb::object(nb::none()) : nb::cast(shared.problem);
    return fields;
  }

 private:
  std::optional<OnnxRuntimeMemory::Load> load_;
};

}  // namespace

void bind_onnxruntime(nb::module_& module) {
  module.def(
      "_onnxruntime_attach",
      [](std::int64_t decay_milliseconds, unsigned max_arenas, bool waits, std::size_t max_plans,
         std::size_t max_plan_bytes) {
        ReplayOptions options;
        options.decay = std::chrono::milliseconds(decay_milliseconds);
        options.max_arenas = max_arenas;
        options.when_full = waits ? WhenFull::kWait : WhenFull::kPool;
        options.max_plans = max_plans;
        options.max_plan_bytes = max_plan_bytes;
        released([&] { return attach(options); }).value();
      },
      nb::arg("decay_milliseconds"), nb::arg("max_arenas"), nb::arg("waits"), nb::arg("max_plans"),
      nb::arg("max_plan_bytes"),
      "Makes Berth the memory of the engine that has opened this module as a library of execution providers.");
  module.def(
      "_onnxruntime_give_back",
      [](bool now) {
        EngineMemory* engine = engine_memory.load();
        return engine == nullptr ? 0 : engine->memory->replay().give_back(now);
      },
      nb::arg("now"), nb::call_guard<nb::gil_scoped_release>(), "Behind berth.onnxruntime.give_back.");
  nb::class_<SessionRuns>(module, "_OnnxRuntimeRuns", "Behind berth.onnxruntime.InferenceSession.")
      .def(nb::init<>())
      .def("begin", &SessionRuns::begin, nb::arg("kind"), nb::arg("dimensions"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("end", &SessionRuns::end, nb::arg("kind"), nb::arg("dimensions"), nb::arg("failed"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("report", &SessionRuns::report);
  nb::class_<SessionLoad>(module, "_OnnxRuntimeLoad", "Shares what sessions load with other processes.")
      .def(nb::init<const std::string&>(), nb::arg("folder"))
      .def("end", &SessionLoad::end);
}

}  // namespace berth::python
