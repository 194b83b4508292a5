#include "run/measure.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/try.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "engines/onnxruntime_library.h"
#include "run/child_process.h"
#include "run/worker.h"

namespace berth::cli {

using namespace internal;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The stock arena learns its pattern in two runs; its latency before that is not representative.
constexpr unsigned kWarmups = 3;

Error io_error(const std::string& text) {
  return Error::with_text(Code::kIo, Layer::kProgram, text);
}

int current_processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "berth-run-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// FNV-1a over a file's bytes, eight at a time.
Result<std::uint64_t> hash_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error(path + ": cannot be opened; name an .onnx file");
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  std::vector<std::uint64_t> piece(8192);
  while (file) {
    std::fill(piece.begin(), piece.end(), 0);
    file.read(reinterpret_cast<char*>(piece.data()), static_cast<std::streamsize>(piece.size() * 8));
    const auto words = (static_cast<std::size_t>(file.gcount()) + 7) / 8;
    for (std::size_t i = 0; i < words; ++i) hash = (hash ^ piece[i]) * 0x100'0000'01b3;
  }
  return hash;
}

// The engine optimises for the processor it runs on, so plans and prepared models are specific to the processor.
std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") || line.starts_with("CPU part")) return line;
  return "unknown";
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Starts a worker and sends it its task.
struct Started {
  ChildProcess process;
  Json loaded;
};
Result<Started> start(const WorkerTask& task) {
  BERTH_TRY_ASSIGN(ChildProcess process, ChildProcess::start({"run-worker"}));
  BERTH_TRY_ASSIGN(Json loaded, process.ask(task));
  return Started{std::move(process), std::move(loaded)};
}

// One side of the comparison while it runs.
struct Side {
  Started worker;
  SideReport& report;
  std::vector<double> latencies, cpu;
  std::uint64_t deviated = 0, deviating_runs = 0, requests = 0;

  Result<void> run(bool timed) {
    BERTH_TRY_ASSIGN(const Json did, worker.process.ask({{"do", "run"}}));
    if (timed) {
      latencies.push_back(did.at("ms"));
      cpu.push_back(did.at("cpu_ms"));
    }
    report.faults += did.at("faults").get<std::uint64_t>();
    report.faults_steady = did.at("faults");
    report.repeats = report.repeats && did.at("identical").get<bool>();
    requests = did.at("requests");
    const std::uint64_t strayed = did.at("deviated");
    deviated += strayed;
    deviating_runs += strayed > 0 ? 1 : 0;
    return {};
  }
};

// Addresses as offsets: the regions of the arena are far apart in the address space and are placed one after the other.
std::vector<std::uint64_t> stack_regions(const ReplayTrace& trace, const std::vector<std::uint64_t>& addresses) {
  constexpr std::uint64_t kFarApart = std::uint64_t{1} << 30;
  std::vector<std::size_t> order(addresses.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return addresses[a] < addresses[b]; });
  std::vector<std::uint64_t> offsets(addresses.size());
  std::uint64_t region = 0, base = 0, end = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint64_t address = addresses[order[i]];
    if (i == 0 || address > region + end - base + kFarApart) {
      region = address;
      base = end;
    }
    offsets[order[i]] = base + (address - region);
    end = std::max(end, offsets[order[i]] + trace.requests[order[i]].bytes);
  }
  return offsets;
}

class Measurement {
 public:
  Measurement(const RunSettings& settings, const Progress& progress) : settings_(settings), progress_(progress) {}

  Result<RunReport> measure() {
    if (temporary_.path().empty()) return io_error("no temporary folder could be made; is TMPDIR writable?");
    BERTH_TRY(identify());
    BERTH_TRY(make_folders());
    progress_("loading", 0);
    WorkerTask stock = task("stock");
    stock.processor = processor_;
    BERTH_TRY_ASSIGN(Started reference, start(stock));
    report_.engine = reference.loaded.at("engine");
    title(reference.loaded);
    // The reference run, before anything is compared with it.
    Side stock_side{std::move(reference), report_.stock, {}, {}};
    BERTH_TRY(stock_side.run(false));

    report_.weights_mapped = settings_.map_weights;
    if (settings_.map_weights) {
      if (Result<void> ready = prepare(true); !ready || !recording_identical_) {
        report_.weights_mapped = false;
        report_.weights_note = ready ? "the mapped model gave other bits" : ready.error().message();
      }
    }
    if (!report_.weights_mapped) {
      BERTH_TRY(prepare(false));
    }
    return compare(std::move(stock_side));
  }

 private:
  WorkerTask task(const std::string& role) const {
    WorkerTask task;
    task.role = role;
    task.models = settings_.models;
    task.threads = settings_.threads;
    task.seed = settings_.seed;
    task.dims = settings_.dims;
    task.inputs = settings_.inputs;
    task.reference = temporary_.path();
    task.output = settings_.output;
    return task;
  }

  // Identifies what the saved plans and prepared models are for.
  Result<void> identify() {
    BERTH_TRY_ASSIGN(const ort::Library* engine, ort::library());
    stamp_ = "onnxruntime " + engine->version + "\n" + processor() + "\nthreads " + std::to_string(settings_.threads);
    for (const std::string& model : settings_.models) {
      std::error_code failed;
      const std::uint64_t size = fs::file_size(model, failed);
      if (failed) return io_error(model + ": " + failed.message() + "; name an .onnx file");
      BERTH_TRY_ASSIGN(const std::uint64_t hash, hash_file(model));
      report_.model_bytes += size;
      hashes_.push_back(hash);
      stamp_ += "\n" + hex(hash) + " " + std::to_string(size);
    }
    return {};
  }

  Result<void> make_folders() {
    for (const std::string& folder : {settings_.output, settings_.plan_cache}) {
      std::error_code failed;
      if (!folder.empty() && !fs::create_directories(folder, failed) && failed)
        return io_error(folder + ": " + failed.message());
    }
    return {};
  }

  void title(const Json& loaded) {
    const auto& inputs = loaded.at("inputs");
    for (std::size_t i = 0; i < settings_.models.size(); ++i)
      report_.plans.push_back({fs::path(settings_.models[i]).filename().string(), inputs.at(i), {}, {}, {}});
    report_.title = settings_.title;
    if (report_.title.empty())
      for (const ModelPlan& model : report_.plans) {
        if (!report_.title.empty()) report_.title += " + ";
        report_.title += model.name + ", " + model.inputs;
      }
    keys_ = loaded.at("keys").get<std::vector<std::string>>();
  }

  std::string cache_file(const std::string& name) const {
    return (settings_.plan_cache.empty() ? temporary_.path() : settings_.plan_cache) + "/" + name;
  }

  // Ensures that there is a saved plan for every model with these inputs, and mappable models if `mapped`.
  Result<void> prepare(bool mapped) {
    berth_ = task("replay");
    berth_.processor = processor_;
    berth_.stamp = stamp_ + (mapped ? "\nmapped" : "\ncopied");
    std::string name;
    for (std::size_t i = 0; i < settings_.models.size(); ++i) {
      const std::string stem = fs::path(settings_.models[i]).stem().string();
      if (!name.empty()) name += '+';
      name += stem;
      if (mapped) berth_.ready_models.push_back(cache_file(stem + "-" + hex(hashes_[i]) + ".ort"));
    }
    berth_.plans = cache_file(name + (mapped ? ".mapped" : "") + ".berth-plans");

    if (mapped) {
      const bool all_there = std::all_of(berth_.ready_models.begin(), berth_.ready_models.end(),
                                         [](const std::string& file) { return fs::exists(file); });
      if (!all_there) {
        progress_("writing the model in mappable form", 0.05);
        WorkerTask ready = berth_;
        ready.role = "ready";
        ready.processor = -1;
        BERTH_TRY(start(ready));
      }
    }
    recording_identical_ = true;
    if (take_plans()) {
      report_.planned_now = false;
      return {};
    }
    progress_("recording", 0.1);
    WorkerTask record = berth_;
    record.role = "record";
    record.processor = -1;
    BERTH_TRY_ASSIGN(Started recorder, start(record));
    if (recorder.loaded.at("keys").get<std::vector<std::string>>() != keys_)
      return Error(Code::kUnsupported, Layer::kEngine,
                   "the engine's mappable form of this model asks for other inputs");
    BERTH_TRY_ASSIGN(const Json did, recorder.process.ask({{"do", "run"}}));
    recording_identical_ = did.at("identical");
    progress_("planning", 0.15);
    BERTH_TRY_ASSIGN(const Json planned, recorder.process.ask({{"do", "finish"}}));
    report_.planning_ms = planned.at("planning_ms");
    report_.recording_peak = planned.at("process_peak");
    if (!take_plans()) return io_error(berth_.plans + ": the plans that were just saved cannot be read");
    return {};
  }

  // Reads the saved plans; false if there are none for all of these models and inputs.
  bool take_plans() {
    std::ifstream file(berth_.plans, std::ios::binary);
    if (!file) return false;
    const std::string saved((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const Result<DevicePtr> cpu = device("CPU");
    if (!cpu) return false;
    Replay replay(*cpu, *cpu);
    if (!replay.load_plans(saved, berth_.stamp)) return false;
    report_.live_peak = report_.plan_bytes = report_.lower_bound = 0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const ReplayTrace* trace = replay.trace(keys_[i]);
      const MemoryPlan* plan = replay.plan(keys_[i]);
      if (trace == nullptr || plan == nullptr) return false;
      report_.plans[i].trace = *trace;
      report_.plans[i].plan = *plan;
      report_.live_peak = std::max(report_.live_peak, trace->live_peak());
      if (plan->size >= report_.plan_bytes) {
        report_.plan_bytes = plan->size;
        report_.lower_bound = plan->lower_bound;
      }
    }
    return true;
  }

  // Lets the engine's own arena serve the recorded requests, in a separate process. Only for the picture: left out if
  // it fails.
  void draw_stock_arena() {
    WorkerTask layout = berth_;
    layout.role = "layout";
    layout.ready_models.clear();
    const Result<Started> drawn = start(layout);
    if (drawn) report_.plans[0].layout = stack_regions(report_.plans[0].trace, drawn->loaded.at("layout"));
  }

  Result<RunReport> compare(Side stock) {
    BERTH_TRY_ASSIGN(Started replayer, start(berth_));
    Side berth{std::move(replayer), report_.berth, {}, {}};
    for (unsigned i = 0; i < kWarmups + settings_.runs; ++i) {
      progress_("running", 0.2 + 0.8 * i / (kWarmups + settings_.runs));
      const bool timed = i >= kWarmups;
      // The side that runs first alternates, so that neither always finds the caches of the other.
      Side& first = i % 2 == 0 ? stock : berth;
      Side& second = i % 2 == 0 ? berth : stock;
      BERTH_TRY(first.run(timed));
      BERTH_TRY(second.run(timed));
    }
    for (Side* side : {&stock, &berth}) {
      BERTH_TRY_ASSIGN(const Json total, side->worker.process.ask({{"do", "finish"}}));
      SideReport& report = side->report;
      report.process_peak = total.at("process_peak");
      report.load_ms = side->worker.loaded.at("load_ms");
      report.latency_ms = spread_of(side->latencies);
      report.cpu_ms = spread_of(side->cpu);
      if (side == &stock) {
        report.held = total.at("held");
        report.in_use = total.at("in_use");
      } else {
        report.held = total.at("arena").get<std::uint64_t>() + total.at("beside").get<std::uint64_t>();
        report.in_use = report.held;
        report_.renewals = total.at("renewals");
      }
    }
    if (report_.plans.size() == 1) draw_stock_arena();
    report_.requests = berth.requests;
    report_.deviated = berth.deviated;
    report_.deviating_runs = berth.deviating_runs;
    report_.runs = settings_.runs;
    report_.threads = settings_.threads;
    progress_("done", 1);
    return std::move(report_);
  }

  const RunSettings& settings_;
  const Progress& progress_;
  // Processors differ in their other load. The two sides never run at the same time; with one thread they share one
  // processor.
  const int processor_ = settings_.threads == 1 ? current_processor() : -1;
  TemporaryFolder temporary_;
  std::string stamp_;
  std::vector<std::uint64_t> hashes_;
  std::vector<std::string> keys_;
  WorkerTask berth_;
  bool recording_identical_ = true;
  RunReport report_;
};

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
  };
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {.median = median, .low = at(0.1), .high = at(0.9)};
}

double RunReport::ratio() const {
  return berth.held == 0 ? 1.0 : static_cast<double>(stock.held) / static_cast<double>(berth.held);
}

Result<RunReport> measure_run(const RunSettings& settings, const Progress& progress) {
  return Measurement(settings, progress).measure();
}

}  // namespace berth::cli
