#include "run/serving_worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "engines/onnxruntime_session.h"
#include "run/inputs.h"
#include "run/process_memory.h"

namespace berth::cli {

using namespace internal;

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr unsigned kWarmups = 2;

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t hash) noexcept {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100'0000'01b3;
  return hash;
}

// One shape of the mix. The counts are written by all threads.
struct Shape {
  std::vector<ort::Tensor> inputs;
  std::vector<std::int64_t> dimensions;   // of all inputs
  std::atomic<std::uint64_t> outputs{0};  // their checksum; 0: no run yet
  std::atomic<bool> repeats{true};
  std::atomic<std::uint64_t> runs{0}, microseconds{0};
};

Json plan_json(const Replay& replay, const std::string& key, const Shape& shape) {
  const auto trace = replay.trace(key, shape.dimensions);
  const auto plan = replay.plan(key, shape.dimensions);
  if (trace == nullptr || plan == nullptr) return {};
  Json requests = Json::array(), offsets = Json::array();
  for (std::size_t i = 0; i < trace->requests.size(); ++i) {
    const ReplayRequest& request = trace->requests[i];
    requests.push_back({request.bytes, request.alignment, request.released_at, request.kept});
    offsets.push_back(plan->has(i) ? Json(plan->slots[i].offset) : Json());
  }
  return {{"requests", requests}, {"releases", trace->releases},      {"offsets", offsets},
          {"size", plan->size},   {"lower_bound", plan->lower_bound}, {"strategy", plan->strategy}};
}

class MixServer {
 public:
  explicit MixServer(const WorkerTask& task) : task_(task) {}
  ~MixServer() {
    model_.reset();  // before the memory it uses
    memory_.reset();
  }

  Result<Json> serve() {
    BERTH_TRY_ASSIGN(engine_, ort::Engine::create());
    if (task_.role == "serve-berth") {
      BERTH_TRY_ASSIGN(memory_, engine_->attach_memory());
    }
    ort::SessionSettings settings;
    settings.model = task_.models[0];
    settings.threads = task_.threads;
    settings.memory = memory_.get();
    BERTH_TRY_ASSIGN(model_, engine_->open(settings));
    BERTH_TRY(make_shapes());
    ort::ArenaStats at_load;
    if (!memory_) {
      BERTH_TRY_ASSIGN(at_load, model_->arena_stats());
    }
    BERTH_TRY(run_all(kWarmups * shapes_.size()));
    for (Shape& shape : shapes_) shape.runs = shape.microseconds = 0;
    const double cpu = process_cpu_ms();
    const Clock::time_point start = Clock::now();
    const std::size_t runs = std::size_t{task_.runs} * shapes_.size();
    BERTH_TRY(run_all(runs));
    Json answer{{"engine", engine_->library().version},
                {"seconds", std::chrono::duration<double>(Clock::now() - start).count()},
                {"cpu_ms", (process_cpu_ms() - cpu) / static_cast<double>(runs)},
                {"runs", runs},
                {"process_peak", process_peak()}};
    for (const Shape& shape : shapes_)
      answer["shapes"].push_back({{"inputs", describe_inputs(shape.inputs)},
                                  {"outputs", shape.outputs.load()},
                                  {"repeats", shape.repeats.load()},
                                  {"ms", static_cast<double>(shape.microseconds) / 1e3 /
                                             static_cast<double>(std::max<std::uint64_t>(shape.runs, 1))},
                                  {"plan", memory_ ? plan_json(memory_->replay(), kKey, shape) : Json()}});
    if (memory_) {
      const ReplayCounters counters = memory_->replay().counters();
      answer["held"] = counters.arena_bytes + counters.beside_peak;
      answer["in_use"] = answer["held"];
      answer["requests"] = counters.requests;
      answer["planned"] = counters.planned;
      answer["recorded_runs"] = counters.recorded_runs;
      answer["arenas"] = counters.arenas;
    } else {
      BERTH_TRY_ASSIGN(const ort::ArenaStats stats, model_->arena_stats());
      // What was in use after loading are weights; they are not counted, here or on Berth's side.
      answer["held"] = stats.held - std::min(stats.held, at_load.in_use);
      answer["in_use"] = stats.max_in_use - std::min(stats.max_in_use, at_load.in_use);
    }
    return answer;
  }

 private:
  static constexpr const char* kKey = "model";

  Result<void> make_shapes() {
    // At least one, with the sizes that --dim and the defaults give.
    const std::size_t count = std::max<std::size_t>(task_.shapes.size(), 1);
    shapes_ = std::vector<Shape>(count);
    for (std::size_t i = 0; i < count; ++i) {
      InputRequest request{.dims = task_.dims, .files = task_.inputs, .seed = task_.seed};
      if (!task_.shapes.empty()) BERTH_TRY(set_shape(model_->inputs(), task_.shapes[i], request));
      BERTH_TRY_ASSIGN(shapes_[i].inputs, make_inputs(model_->inputs(), request));
      for (const ort::Tensor& input : shapes_[i].inputs)
        shapes_[i].dimensions.insert(shapes_[i].dimensions.end(), input.shape.begin(), input.shape.end());
    }
    for (std::size_t i = 0; i < model_->outputs().size(); ++i) outputs_.push_back(i);
    return {};
  }

  // `count` runs, the shapes in turn, on as many threads as the task says. The first error of any.
  Result<void> run_all(std::size_t count) {
    std::atomic<std::size_t> next{0};
    Mutex mutex;
    Result<void> first_error;
    const auto work = [&] {
      for (std::size_t i = next++; i < count; i = next++) {
        Result<void> ran = run(shapes_[i % shapes_.size()]);
        if (ran) continue;
        const MutexLock guard(mutex);
        if (first_error) first_error = std::move(ran);
        next = count;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 1; t < task_.concurrency; ++t) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    return first_error;
  }

  Result<void> run(Shape& shape) {
    std::vector<ort::InputView> views;
    for (const ort::Tensor& input : shape.inputs) views.push_back({input.shape, input.bytes});
    std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
    const Clock::time_point start = Clock::now();
    std::optional<engines::OnnxRuntimeMemory::Run> scope;
    if (memory_) scope.emplace(memory_->replay(), kKey, shape.dimensions);
    std::chrono::nanoseconds checking{0};
    {
      BERTH_TRY_ASSIGN(const std::vector<ort::Output> made, model_->run(views, outputs_));
      const Clock::time_point made_at = Clock::now();
      for (const ort::Output& output : made)
        if (const auto view = output.view()) hash = checksum(view->bytes, hash);
      checking = Clock::now() - made_at;
    }
    scope.reset();
    const auto took = Clock::now() - start - checking;
    shape.microseconds +=
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
    ++shape.runs;
    const std::uint64_t before = shape.outputs.exchange(hash);
    if (before != 0 && before != hash) shape.repeats = false;
    return {};
  }

  const WorkerTask& task_;
  std::unique_ptr<ort::Engine> engine_;
  std::unique_ptr<engines::OnnxRuntimeMemory> memory_;
  std::unique_ptr<ort::Model> model_;
  std::vector<Shape> shapes_;
  std::vector<std::size_t> outputs_;
};

}  // namespace

Result<Json> serve_mix(const WorkerTask& task) {
  return MixServer(task).serve();
}

}  // namespace berth::cli
