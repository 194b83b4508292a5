// Berth as the memory of the engine inside the onnxruntime package. That engine exports nothing, but it opens libraries
// of execution providers and gives each its interface. This module is such a library, one without a provider: Python
// has the engine open it, and berth/onnxruntime then makes Berth the memory of the engine's environment. The engine has
// one environment per process, which ends with the process, and so does the memory: an output may outlive its session.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/try.h"
#include "berth/engines/onnxruntime.h"
#include "bindings.h"
#include "engines/onnxruntime_abi.h"
#include "engines/onnxruntime_library.h"
#include "plan_binding.h"

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

Result<void> attach() {
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
  BERTH_TRY_ASSIGN(made->memory, OnnxRuntimeMemory::attach(reinterpret_cast<const OrtApi*>(api),
                                                           reinterpret_cast<OrtEnv*>(environment)));
  engine_memory.store(made.release());
  return {};
}

// The runs of one session: names them for the replay, and keeps what the last one did.
class SessionRuns {
 public:
  SessionRuns() : engine_(attached()) {
    static std::atomic<std::uint64_t> numbers{0};
    number_ = std::to_string(numbers.fetch_add(1) + 1);
  }

  ~SessionRuns() {
    for (const std::string& key : keys_) engine_.memory->replay().forget(key);
  }
  SessionRuns(const SessionRuns&) = delete;
  SessionRuns& operator=(const SessionRuns&) = delete;

  // Begins a run on the calling thread, on which it also ends. Runs of a kind make requests that depend on the
  // dimensions.
  void begin(const std::string& kind, const std::vector<std::int64_t>& dimensions) {
    const std::string key = number_ + '|' + kind;
    {
      const std::lock_guard guard(mutex_);
      keys_.insert(key);
    }
    note(engine_.memory->replay().begin_run(key, dimensions));
  }

  // What is new is planned here, when its outputs are released.
  void end(const std::string& kind, std::vector<std::int64_t> dimensions) {
    Replay& replay = engine_.memory->replay();
    const ReplayRun run = replay.end_run();
    if (run.recorded) note(replay.plan_recorded());
    const std::lock_guard guard(mutex_);
    last_ = run;
    ++runs_;
    last_key_ = number_ + '|' + kind;
    last_dimensions_ = std::move(dimensions);
  }

  struct Report {
    ReplayRun last;
    ReplayCounters all;
    std::uint64_t runs = 0;
    std::uint64_t live_peak = 0;
    std::uint64_t weight_bytes = 0;
    std::optional<PlannedProblem> planned;
    std::string problem;
  };
  Report report() const {
    Replay& replay = engine_.memory->replay();
    Report report;
    std::string key;
    std::vector<std::int64_t> dimensions;
    {
      const std::lock_guard guard(mutex_);
      report.last = last_;
      report.runs = runs_;
      report.problem = problem_;
      key = last_key_;
      dimensions = last_dimensions_;
    }
    report.all = replay.counters();
    report.weight_bytes = engine_.memory->weight_bytes();
    if (const auto trace = replay.trace(key, dimensions)) {
      report.live_peak = trace->live_peak();
      if (const auto plan = replay.plan(key, dimensions)) report.planned = PlannedProblem{plan_problem(*trace), *plan};
    }
    return report;
  }

 private:
  // The plan or the arena could not be made: the run is served by the pool, and the report says why.
  void note(const Result<void>& result) {
    if (result) return;
    const std::lock_guard guard(mutex_);
    problem_ = result.error().message();
  }

  EngineMemory& engine_;
  std::string number_;
  mutable std::mutex mutex_;  // guards what follows; never held while the replay is called
  std::set<std::string> keys_;
  ReplayRun last_;
  std::string last_key_, problem_;
  std::vector<std::int64_t> last_dimensions_;
  std::uint64_t runs_ = 0;
};

nb::dict report(const SessionRuns& self) {
  SessionRuns::Report report = released([&] { return self.report(); });
  nb::dict fields;
  fields["runs"] = report.runs;
  fields["recorded"] = report.last.recorded;
  fields["predicted"] = report.last.predicted;
  fields["requests"] = report.last.requests;
  fields["planned"] = report.last.planned;
  fields["reordered"] = report.last.reordered;
  fields["deviated"] = report.last.deviated;
  fields["live_peak"] = report.live_peak;
  fields["arenas"] = report.all.arenas;
  fields["arena_bytes"] = report.all.arena_bytes;
  fields["given_back"] = report.all.given_back;
  fields["pool_bytes"] = report.all.pool_bytes;
  fields["weight_bytes"] = report.weight_bytes;
  fields["plans"] = report.all.plans;
  fields["problem"] = report.problem.empty() ? nb::object(nb::none()) : nb::cast(report.problem);
  fields["plan"] = report.planned ? nb::cast(std::move(*report.planned)) : nb::object(nb::none());
  return fields;
}

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
      "_onnxruntime_attach", [] { released([] { return attach(); }).value(); },
      "Makes Berth the memory of the engine that has opened this module as a library of execution providers.");
  nb::class_<SessionRuns>(module, "_OnnxRuntimeRuns", "Behind berth.onnxruntime.InferenceSession.")
      .def(nb::init<>())
      .def("begin", &SessionRuns::begin, nb::arg("kind"), nb::arg("dimensions"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("end", &SessionRuns::end, nb::arg("kind"), nb::arg("dimensions"), nb::call_guard<nb::gil_scoped_release>())
      .def("report", &report);
  nb::class_<SessionLoad>(module, "_OnnxRuntimeLoad", "Shares what sessions load with other processes.")
      .def(nb::init<const std::string&>(), nb::arg("folder"))
      .def("end", &SessionLoad::end);
}

}  // namespace berth::python
