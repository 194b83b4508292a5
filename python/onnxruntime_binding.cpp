// Sessions of ONNX Runtime with Berth as their memory. The engine has one environment per process, so all sessions
// share one memory and one arena, which are destroyed with the last session. The Python interface is in
// berth/onnxruntime.py.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/try.h"
#include "berth/engines/onnxruntime.h"
#include "bindings.h"
#include "engines/onnxruntime_session.h"
#include "plan_binding.h"

namespace berth::python {

using namespace internal;

namespace {

using engines::OnnxRuntimeMemory;

// The environment and its memory. The memory is declared last because it is destroyed first.
struct SharedEngine {
  std::unique_ptr<ort::Engine> engine;
  std::unique_ptr<OnnxRuntimeMemory> memory;
  // Serialises beginning, ending and planning, so that a plan can be read. Never acquired with the interpreter lock
  // held.
  std::mutex mutex;
  unsigned running = 0;
};

// A share of the engine. Counted under a separate lock: a new environment must not be created while the old one is
// being destroyed.
class EngineShare {
 public:
  static Result<EngineShare> take(const std::string& folder) {
    const std::lock_guard guard(mutex_);
    if (shares_ == 0) {
      auto made = std::make_unique<SharedEngine>();
      BERTH_TRY_ASSIGN(made->engine, ort::Engine::create(folder));
      BERTH_TRY_ASSIGN(made->memory, made->engine->attach_memory());
      engine_ = std::move(made);
    }
    ++shares_;
    return EngineShare(++next_number_);
  }
  EngineShare(EngineShare&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  EngineShare& operator=(EngineShare&&) = delete;
  ~EngineShare() {
    if (number_ == 0) return;
    const std::lock_guard guard(mutex_);
    if (--shares_ == 0) engine_.reset();
  }
  SharedEngine& operator*() const noexcept { return *engine_; }
  SharedEngine* operator->() const noexcept { return engine_.get(); }
  // Never repeats.
  std::uint64_t number() const noexcept { return number_; }

 private:
  explicit EngineShare(std::uint64_t number) : number_(number) {}
  std::uint64_t number_;

  static inline std::mutex mutex_;
  static inline unsigned shares_ = 0;
  static inline std::uint64_t next_number_ = 0;
  static inline std::unique_ptr<SharedEngine> engine_;
};

// A copy of an output in separate memory: the memory of the engine is reused by the next run.
struct CopiedOutput {
  int element_type = 0;
  std::vector<std::int64_t> shape;
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
};

Result<CopiedOutput> copy_of(const ort::Output& output) {
  BERTH_TRY_ASSIGN(ort::Output::View view, output.view());
  CopiedOutput copy{.element_type = view.element_type,
                    .shape = std::move(view.shape),
                    .bytes = std::make_unique_for_overwrite<std::byte[]>(view.bytes.size() + 1),
                    .size = view.bytes.size()};
  if (copy.size != 0) std::memcpy(copy.bytes.get(), view.bytes.data(), copy.size);
  return copy;
}

class EngineSession {
 public:
  static Result<std::unique_ptr<EngineSession>> open(const std::string& folder, ort::SessionSettings settings) {
    BERTH_TRY_ASSIGN(EngineShare share, EngineShare::take(folder));
    settings.memory = share->memory.get();
    BERTH_TRY_ASSIGN(auto model, share->engine->open(settings));
    return std::unique_ptr<EngineSession>(new EngineSession(std::move(share), std::move(model)));
  }

  const ort::Model& model() const noexcept { return *model_; }

  Result<std::vector<CopiedOutput>> run(std::span<const ort::InputView> inputs, std::span<const std::size_t> outputs) {
    std::string key = std::to_string(share_.number());
    for (const ort::InputView& input : inputs) {
      key += '|';
      for (const std::int64_t extent : input.shape) key += std::to_string(extent) + ',';
    }
    // Other outputs, other requests.
    for (const std::size_t output : outputs) key += ':' + std::to_string(output);
    const RunScope scope(*this, std::move(key));
    BERTH_TRY_ASSIGN(const std::vector<ort::Output> made, model_->run(inputs, outputs));
    std::vector<CopiedOutput> copies;
    for (const ort::Output& output : made) {
      BERTH_TRY_ASSIGN(CopiedOutput copy, copy_of(output));
      copies.push_back(std::move(copy));
    }
    return copies;
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
    const std::lock_guard guard(share_->mutex);
    const Replay& replay = share_->memory->replay();
    Report report{.last = last_,
                  .all = replay.counters(),
                  .runs = runs_,
                  .live_peak = 0,
                  .weight_bytes = share_->memory->weight_bytes(),
                  .planned = std::nullopt,
                  .problem = problem_};
    if (const ReplayTrace* trace = replay.trace(last_key_)) {
      report.live_peak = trace->live_peak();
      if (const MemoryPlan* plan = replay.plan(last_key_)) report.planned = PlannedProblem{plan_problem(*trace), *plan};
    }
    return report;
  }

 private:
  EngineSession(EngineShare share, std::unique_ptr<ort::Model> model)
      : share_(std::move(share)), model_(std::move(model)) {}

  // One run of the replay. A new key is planned at its end, when its outputs are released and nobody else runs.
  class RunScope {
   public:
    RunScope(EngineSession& session, std::string key) : session_(session), key_(std::move(key)) {
      const std::lock_guard guard(engine().mutex);
      ++engine().running;
      session_.note(engine().memory->replay().begin_run(key_));
    }
    ~RunScope() {
      const std::lock_guard guard(engine().mutex);
      Replay& replay = engine().memory->replay();
      const ReplayRun did = replay.end_run();
      ++session_.runs_;
      session_.last_ = did;
      session_.last_key_.swap(key_);
      if (--engine().running == 0 && did.recorded) session_.note(replay.plan_recorded());
    }
    RunScope(const RunScope&) = delete;
    RunScope& operator=(const RunScope&) = delete;

   private:
    SharedEngine& engine() const noexcept { return *session_.share_; }
    EngineSession& session_;
    std::string key_;
  };

  // The plan or the arena could not be made: the run is served by the pool, and the report says why.
  void note(const Result<void>& result) {
    if (!result) problem_ = result.error().message();
  }

  EngineShare share_;
  std::unique_ptr<ort::Model> model_;
  // Guarded by the shared engine's mutex.
  ReplayRun last_;
  std::string last_key_, problem_;
  std::uint64_t runs_ = 0;
};

nb::list describe(const std::vector<ort::TensorSpec>& specs) {
  nb::list all;
  for (const ort::TensorSpec& spec : specs) {
    nb::list shape;
    for (std::size_t i = 0; i < spec.shape.size(); ++i) {
      if (spec.shape[i] >= 0)
        shape.append(spec.shape[i]);
      else if (!spec.symbols[i].empty())
        shape.append(spec.symbols[i]);
      else
        shape.append(nb::none());
    }
    all.append(nb::make_tuple(spec.name, shape, ort::element_name(spec.element_type)));
  }
  return all;
}

nb::list run(EngineSession& self, nb::list inputs, const std::vector<std::size_t>& outputs) {
  std::vector<std::unique_ptr<HostBytes>> held;
  std::vector<ort::InputView> views;
  for (nb::handle input : inputs) {
    held.push_back(std::make_unique<HostBytes>(input[1], false));
    views.push_back({nb::cast<std::vector<std::int64_t>>(input[0]), held.back()->bytes()});
  }
  std::vector<CopiedOutput> made = released([&] { return self.run(views, outputs); }).value();
  nb::list all;
  for (CopiedOutput& output : made) {
    std::byte* bytes = output.bytes.release();
    const nb::capsule owner(bytes, [](void* memory) noexcept { delete[] static_cast<std::byte*>(memory); });
    const nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> array(bytes, {output.size}, owner);
    all.append(nb::make_tuple(ort::element_name(output.element_type), nb::tuple(nb::cast(output.shape)), array));
  }
  return all;
}

nb::dict report(const EngineSession& self) {
  EngineSession::Report report = released([&] { return self.report(); });
  nb::dict fields;
  fields["runs"] = report.runs;
  fields["recorded"] = report.last.recorded;
  fields["requests"] = report.last.requests;
  fields["planned"] = report.last.planned;
  fields["reordered"] = report.last.reordered;
  fields["deviated"] = report.last.deviated;
  fields["live_peak"] = report.live_peak;
  fields["arena_bytes"] = report.all.arena_bytes;
  fields["pool_bytes"] = report.all.pool_bytes;
  fields["weight_bytes"] = report.weight_bytes;
  fields["plans"] = report.all.plans;
  fields["problem"] = report.problem.empty() ? nb::object(nb::none()) : nb::cast(report.problem);
  fields["plan"] = report.planned ? nb::cast(std::move(*report.planned)) : nb::object(nb::none());
  return fields;
}

}  // namespace

void bind_onnxruntime(nb::module_& module) {
  nb::class_<EngineSession>(module, "_OnnxRuntimeSession", "Behind berth.onnxruntime.Session.")
      .def("inputs", [](const EngineSession& self) { return describe(self.model().inputs()); })
      .def("outputs", [](const EngineSession& self) { return describe(self.model().outputs()); })
      .def("run", &run, nb::arg("inputs"), nb::arg("outputs"))
      .def("report", &report);
  module.def(
      "_onnxruntime_session",
      [](const std::string& folder, const std::string& path, nb::handle bytes, int threads) {
        std::optional<HostBytes> model;
        if (!bytes.is_none()) model.emplace(bytes, false);
        return released([&] {
                 ort::SessionSettings settings{.model = path, .threads = threads};
                 if (model) settings.bytes = model->bytes();
                 return EngineSession::open(folder, std::move(settings));
               })
            .value()
            .release();
      },
      nb::rv_policy::take_ownership, nb::arg("folder"), nb::arg("path"), nb::arg("bytes").none(), nb::arg("threads"));
}

}  // namespace berth::python
