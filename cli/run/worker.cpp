#include "run/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string_view>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "base/try.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "engines/onnxruntime_session.h"
#include "engines/ort_format.h"
#include "run/inputs.h"
#include "run/message.h"
#include "run/npy.h"
#include "run/order_worker.h"
#include "run/process_memory.h"
#include "run/serving_worker.h"

namespace berth::cli {

using namespace internal;

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

std::uint64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt + usage.ru_majflt);
}

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Any processor if the system does not allow a choice.
void stay_on(int processor) {
#if defined(__linux__)
  if (processor < 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<std::size_t>(processor), &only);
  sched_setaffinity(0, sizeof only, &only);
#else
  static_cast<void>(processor);
#endif
}

std::string file_safe(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  return name;
}

// Compares with a file in small pieces, so that comparing does not affect the peak of the process.
Result<bool> equals_file(std::span<const std::byte> bytes, const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Error::with_text(Code::kIo, Layer::kProgram, path + ": " + std::strerror(errno));
  bool equal = true;
  std::byte piece[16384];
  std::size_t at = 0;
  for (;;) {
    const ssize_t n = read(file, piece, sizeof piece);
    if (n <= 0) break;
    const auto size = static_cast<std::size_t>(n);
    equal = equal && size <= bytes.size() - at && std::memcmp(piece, bytes.data() + at, size) == 0;
    if (!equal) break;
    at += size;
  }
  close(file);
  return equal && at == bytes.size();
}

struct Loaded {
  std::optional<ort::MappedModel> mapped;
  std::unique_ptr<ort::Model> model;
  std::vector<ort::Tensor> inputs;
  std::string key;
  ort::ArenaStats at_load;
};

class Worker {
 public:
  explicit Worker(WorkerTask task) : task_(std::move(task)) {}
  ~Worker() {
    models_.clear();  // before the memory they use
    memory_.reset();
  }

  Result<Json> load() {
    stay_on(task_.processor);
    const bool shares_threads = std::count(task_.reuse.begin(), task_.reuse.end(), false) > 0;
    BERTH_TRY_ASSIGN(engine_, ort::Engine::create({}, shares_threads ? task_.threads : 0));
    Json answer{{"engine", engine_->library().version}, {"library", engine_->library().path}};
    if (task_.role == "ready") {
      BERTH_TRY(write_ready_models());
      return answer;
    }
    const bool berth = task_.role == "record" || task_.role == "replay";
    if (berth) {
      engines::OnnxRuntimeOptions options;
      options.before_weights = [this] { forget_file_pages(); };
      BERTH_TRY_ASSIGN(memory_, engine_->attach_memory(std::move(options)));
    }
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < task_.models.size(); ++i) BERTH_TRY(load_model(i));
    forget_file_pages();
    answer["load_ms"] = ms_since(start);
    for (const Loaded& loaded : models_) {
      answer["inputs"].push_back(describe_inputs(loaded.inputs));
      answer["keys"].push_back(loaded.key);
    }
    if (task_.role == "replay") {
      BERTH_TRY_ASSIGN(const std::string saved, internal::read_whole_file(task_.plans));
      BERTH_TRY(memory_->replay().load_plans(saved, task_.stamp));
    }
    if (task_.role == "layout") {
      BERTH_TRY_ASSIGN(answer["layout"], layout());
    }
    return answer;
  }

  // One run of every model.
  Result<Json> run() {
    double ms = 0, cpu = 0;
    std::uint64_t faults = 0, deviated = 0, reordered = 0, requests = 0;
    bool identical = true, recorded = false;
    for (Loaded& loaded : models_) {
      std::optional<engines::OnnxRuntimeMemory::Run> scope;
      if (memory_) {
        scope.emplace(memory_->replay(), loaded.key);
        BERTH_TRY(scope->status);
      }
      const std::uint64_t faults_before = page_faults();
      const double cpu_before = process_cpu_ms();
      const Clock::time_point start = Clock::now();
      BERTH_TRY_ASSIGN(std::vector<ort::Output> outputs, loaded.model->run());
      ms += ms_since(start);
      cpu += process_cpu_ms() - cpu_before;
      faults += page_faults() - faults_before;
      if (scope) {
        const ReplayRun did = scope->end();
        deviated += did.deviated;
        reordered += did.reordered;
        requests += did.requests;
        recorded = recorded || did.recorded;
      }
      BERTH_TRY_ASSIGN(const bool same, compare(loaded, outputs));
      identical = identical && same;
      const Clock::time_point release = Clock::now();
      outputs.clear();
      ms += ms_since(release);
    }
    ++runs_;
    return Json{{"ms", ms},
                {"cpu_ms", cpu},
                {"faults", faults},
                {"identical", identical},
                {"deviated", deviated},
                {"reordered", reordered},
                {"requests", requests},
                {"recorded", recorded}};
  }

  Result<Json> finish() {
    Json answer{{"process_peak", process_peak()}};
    if (task_.role == "record") {
      BERTH_TRY(memory_->replay().plan_recorded());
      double planning_ms = 0;
      for (const Loaded& loaded : models_)
        if (const auto plan = memory_->replay().plan(loaded.key)) planning_ms += plan->seconds * 1e3;
      answer["planning_ms"] = planning_ms;
      BERTH_TRY(internal::write_whole_file(task_.plans, memory_->replay().save_plans(task_.stamp)));
    }
    if (memory_) {
      const ReplayCounters counters = memory_->replay().counters();
      answer["arena"] = counters.arena_bytes;
      answer["beside"] = counters.beside_peak;
      answer["deviated"] = counters.deviated;
      answer["deviating_runs"] = counters.deviating_runs;
      answer["renewals"] = counters.renewals;
      answer["requests"] = counters.requests;
      answer["weights"] = memory_->weight_bytes();
    } else {
      std::uint64_t held = 0, in_use = 0;
      for (const Loaded& loaded : models_) {
        BERTH_TRY_ASSIGN(const ort::ArenaStats stats, loaded.model->arena_stats());
        // Memory that was in use after loading the model are weights; they are not counted, here or on Berth's side.
        held += stats.held - std::min(stats.held, loaded.at_load.in_use);
        in_use += stats.max_in_use - std::min(stats.max_in_use, loaded.at_load.in_use);
      }
      answer["held"] = held;
      answer["in_use"] = in_use;
    }
    return answer;
  }

 private:
  void forget_file_pages() noexcept {
    for (const Loaded& loaded : models_)
      if (loaded.mapped) loaded.mapped->forget_pages();
  }

  Result<void> write_ready_models() {
    for (std::size_t i = 0; i < task_.models.size(); ++i) {
      ort::SessionSettings settings;
      settings.model = task_.models[i];
      settings.threads = task_.threads;
      settings.save_ready_model = task_.ready_models[i];
      BERTH_TRY(engine_->open(settings));
      BERTH_TRY(ort::align_weights(settings.save_ready_model));
    }
    return {};
  }

  Result<void> load_model(std::size_t index) {
    models_.emplace_back();
    Loaded& loaded = models_.back();
    ort::SessionSettings settings;
    settings.model = task_.models[index];
    settings.threads = task_.threads;
    settings.memory = memory_.get();
    if (!task_.reuse.empty()) settings.reuse = task_.reuse[index];
    if (!task_.ready_models.empty()) {
      BERTH_TRY_ASSIGN(ort::MappedModel mapped, ort::MappedModel::open(task_.ready_models[index]));
      loaded.mapped.emplace(std::move(mapped));
      settings.mapped = &*loaded.mapped;
    }
    BERTH_TRY_ASSIGN(loaded.model, engine_->open(settings));
    const InputRequest request{.dims = task_.dims, .files = task_.inputs, .seed = task_.seed};
    BERTH_TRY_ASSIGN(loaded.inputs, make_inputs(loaded.model->inputs(), request));
    BERTH_TRY(loaded.model->bind(loaded.inputs));
    loaded.key = std::to_string(index) + " " + describe_inputs(loaded.inputs);
    if (!memory_) {
      BERTH_TRY_ASSIGN(loaded.at_load, loaded.model->arena_stats());
    }
    return {};
  }

  // Where the engine's own arena puts the requests of the first model's recorded run.
  Result<Json> layout() {
    BERTH_TRY_ASSIGN(const std::string saved, internal::read_whole_file(task_.plans));
    BERTH_TRY_ASSIGN(const DevicePtr cpu, device("CPU"));
    Replay replay(cpu, cpu);
    BERTH_TRY(replay.load_plans(saved, task_.stamp));
    const auto trace = replay.trace(models_[0].key);
    if (trace == nullptr)
      return Error(Code::kNotFound, Layer::kProgram, "the saved plans have no run with these inputs");
    BERTH_TRY_ASSIGN(const std::vector<std::uint64_t> addresses, models_[0].model->arena_addresses(*trace));
    return Json(addresses);
  }

  std::string reference_file(const Loaded& loaded, std::size_t output) const {
    return task_.reference + "/" + std::to_string(index_of(loaded)) + "." + std::to_string(output);
  }

  // The stock worker's first run writes the reference; everything after is compared with it.
  Result<bool> compare(const Loaded& loaded, const std::vector<ort::Output>& outputs) {
    bool identical = true;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      BERTH_TRY_ASSIGN(const ort::Output::View view, outputs[i].view());
      const std::string path = reference_file(loaded, i);
      if (task_.role == "stock" && runs_ == 0)
        BERTH_TRY(
            internal::write_whole_file(path, {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}));
      BERTH_TRY_ASSIGN(const bool same, equals_file(view.bytes, path));
      identical = identical && same;
      if (!task_.output.empty() && task_.role == "replay" && runs_ == 0) {
        std::string name = file_safe(loaded.model->outputs()[i].name) + ".npy";
        if (models_.size() > 1)
          name = std::filesystem::path(task_.models[index_of(loaded)]).stem().string() + "." + name;
        BERTH_TRY(write_npy(task_.output + "/" + name, view.element_type, view.shape, view.bytes));
      }
    }
    return identical;
  }

  std::size_t index_of(const Loaded& loaded) const { return static_cast<std::size_t>(&loaded - models_.data()); }

  WorkerTask task_;
  std::unique_ptr<ort::Engine> engine_;
  std::unique_ptr<engines::OnnxRuntimeMemory> memory_;
  std::vector<Loaded> models_;
  std::uint64_t runs_ = 0;
};

void answer(const Result<Json>& result) {
  const Json line =
      result ? *result
             : Json{{"error", result.error().message()}, {"code", static_cast<unsigned>(result.error().code())}};
  std::cout << encode_message(line) << std::endl;
}

}  // namespace

int serve_worker() {
  std::optional<Worker> worker;
  for (std::string line; std::getline(std::cin, line);) {
    const Json question = decode_message(line);
    if (question.is_discarded()) return 2;
    if (!worker) {
      auto task = question.get<WorkerTask>();
      if (task.role == "order") {
        const Result<std::vector<OrderFound>> found = find_orders(task);
        answer(found ? Result<Json>(Json{{"orders", *found}}) : Result<Json>(found.error()));
        return found ? 0 : 1;
      }
      if (task.role.starts_with("serve-")) {
        const Result<Json> served = serve_mix(task);
        answer(served);
        return served ? 0 : 1;
      }
      worker.emplace(std::move(task));
      const Result<Json> loaded = worker->load();
      answer(loaded);
      if (!loaded) return 1;
    } else if (question.value("do", "") == "run") {
      answer(worker->run());
    } else if (question.value("do", "") == "finish") {
      answer(worker->finish());
    }
  }
  return 0;
}

}  // namespace berth::cli
