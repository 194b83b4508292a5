#include "run/measure.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/input_file.h"
#include "base/try.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "engines/onnxruntime_library.h"
#include "run/child_process.h"
#include "run/message.h"
#include "run/private_folder.h"
#include "run/ready_model.h"
#include "run/worker.h"

namespace berth::cli {

using namespace internal;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The stock arena learns its pattern in two runs; its latency before that is not representative.
constexpr unsigned kStockWarmups = 3;

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
Result<Started> start(const WorkerTask& task, const std::stop_token& stop) {
  BERTH_TRY_ASSIGN(ChildProcess process, ChildProcess::start({"run-worker"}, stop));
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
  Measurement(const RunSettings& settings, const Progress& progress, std::stop_token stop)
      : settings_(settings), progress_(progress), stop_(std::move(stop)) {}

  Result<RunReport> measure() {
    BERTH_TRY(identify());
    BERTH_TRY(make_folders());
    progress_("loading", 0);
    WorkerTask stock = task("stock");
    stock.processor = processor_;
    BERTH_TRY_ASSIGN(Started reference, start(stock, stop_));
    report_.engine = reference.loaded.at("engine");
    title(reference.loaded);
    // The reference run, before anything is compared with it.
    Side stock_side{std::move(reference), report_.stock, {}, {}};
    BERTH_TRY(stock_side.run(false));

    BERTH_TRY(prepare_all());
    return compare(std::move(stock_side));
  }

 private:
  WorkerTask task(const std::string& role) const {
    WorkerTask task = make_task(settings_, role);
    task.reference = temporary_->path();
    task.output = settings_.output;
    return task;
  }

  // Identifies what the saved plans and prepared models are for.
  Result<void> identify() {
    BERTH_TRY_ASSIGN(const ort::Library* engine, ort::library());
    // The engine optimises a graph for itself and the processor.
    model_stamp_ = "onnxruntime " + engine->version + "\n" + processor();
    stamp_ = model_stamp_ + "\nthreads " + std::to_string(settings_.threads);
    for (const std::string& model : settings_.models) {
      std::error_code failed;
      const std::uint64_t size = fs::file_size(model, failed);
      if (failed) return io_error(model + ": " + failed.message() + "; name an .onnx file");
      BERTH_TRY_ASSIGN(const std::uint64_t hash, file_checksum(model));
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
    std::error_code failed;
    const fs::path temporary = fs::temp_directory_path(failed);
    if (failed) return io_error("no temporary folder could be made: " + failed.message() + "; is TMPDIR a folder?");
    BERTH_TRY_ASSIGN(PrivateFolder folder, PrivateFolder::make(temporary.string(), "berth-run-"));
    temporary_.emplace(std::move(folder));
    return {};
  }

  void title(const Json& loaded) {
    const auto& inputs = loaded.at("inputs");
    for (std::size_t i = 0; i < settings_.models.size(); ++i)
      report_.plans.push_back({fs::path(settings_.models[i]).filename().string(), inputs.at(i), {}, {}, {}, {}});
    report_.title = settings_.title;
    if (report_.title.empty())
      for (const ModelPlan& model : report_.plans) {
        if (!report_.title.empty()) report_.title += " + ";
        report_.title += model.name + ", " + model.inputs;
      }
    keys_ = loaded.at("keys").get<std::vector<std::string>>();
  }

  std::string cache_file(const std::string& name) const {
    return (settings_.plan_cache.empty() ? temporary_->path() : settings_.plan_cache) + "/" + name;
  }

  // Where a worker writes a file before it gets its place in the cache: in a folder of this process beside it. A cache
  // that has everything need not be writable.
  Result<std::string> unfinished_file(const std::string& file) {
    if (settings_.plan_cache.empty()) return file;
    if (!unfinished_) {
      BERTH_TRY_ASSIGN(PrivateFolder folder, PrivateFolder::make(settings_.plan_cache, ".berth-run-"));
      unfinished_.emplace(std::move(folder));
    }
    return unfinished_->path() + "/" + fs::path(file).filename().string();
  }

  // Gives a finished file its place in the cache: readers see all of it or none. Another process may have done the same
  // before; its file is as good.
  Result<void> publish(const std::string& unfinished, const std::string& file) const {
    if (unfinished != file && std::rename(unfinished.c_str(), file.c_str()) != 0)
      return io_error(file + ": cannot be written: " + std::strerror(errno));
    return {};
  }

  // Plans, and mappable models unless they are not wanted or give other bits.
  Result<void> prepare_all() {
    from_cache_ = false;
    report_.weights_note.clear();
    report_.weights_mapped = settings_.map_weights;
    if (settings_.map_weights) {
      Result<void> ready = prepare(true);
      if (from_cache_ && (!ready || !recording_identical_) && !stop_.stop_requested()) {
        remove_cached();
        from_cache_ = false;
        ready = prepare(true);
      }
      if (!ready && ready.error().code() == Code::kCancelled) return ready;
      if (!ready || !recording_identical_) {
        report_.weights_mapped = false;
        report_.weights_note = ready ? "the mapped model gave other bits" : ready.error().message();
      }
    }
    return report_.weights_mapped ? Result<void>() : prepare(false);
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
    cached_plans_ = cache_file(name + (mapped ? ".mapped" : "") + ".berth-plans");
    // Its own copy: another process may put the plans of other inputs into the cache at any time.
    berth_.plans = temporary_->path() + "/plans";
    for (ModelPlan& model : report_.plans) model.order = {};
    report_.order_note.clear();
    if (mapped) {
      BERTH_TRY(prepare_models());
      if (settings_.find_order) BERTH_TRY(choose_orders());
    } else if (settings_.find_order) {
      report_.order_note = "the weights are not mapped";
    }
    recording_identical_ = true;
    BERTH_TRY_ASSIGN(const bool known, take_plans(cached_plans_));
    if (known) {
      report_.planned_now = false;
      from_cache_ = true;
      return {};
    }
    report_.planned_now = true;
    progress_("recording", 0.1);
    WorkerTask record = berth_;
    record.role = "record";
    record.processor = -1;
    BERTH_TRY_ASSIGN(record.plans, unfinished_file(cached_plans_));
    BERTH_TRY_ASSIGN(Started recorder, start(record, stop_));
    if (recorder.loaded.at("keys").get<std::vector<std::string>>() != keys_)
      return Error(Code::kUnsupported, Layer::kEngine,
                   "the engine's mappable form of this model asks for other inputs");
    BERTH_TRY_ASSIGN(const Json did, recorder.process.ask({{"do", "run"}}));
    recording_identical_ = did.at("identical");
    progress_("planning", 0.15);
    BERTH_TRY_ASSIGN(const Json planned, recorder.process.ask({{"do", "finish"}}));
    report_.planning_ms = planned.at("planning_ms");
    report_.recording_peak = planned.at("process_peak");
    BERTH_TRY_ASSIGN(const bool saved, take_plans(record.plans));
    if (!saved) return io_error(record.plans + ": the plans that were just saved cannot be read");
    return publish(record.plans, cached_plans_);
  }

  // Writes the mappable models that are missing, damaged, or made by another engine or for another processor.
  Result<void> prepare_models() {
    WorkerTask ready = berth_;
    ready.role = "ready";
    ready.processor = -1;
    ready.models.clear();
    ready.ready_models.clear();
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < berth_.ready_models.size(); ++i) {
      const std::string& file = berth_.ready_models[i];
      if (std::count(missing.begin(), missing.end(), file) > 0) continue;  // a model that is named twice
      if (is_sealed(file, model_stamp_)) {
        from_cache_ = true;
        continue;
      }
      missing.push_back(file);
      ready.models.push_back(settings_.models[i]);
      BERTH_TRY_ASSIGN(std::string unfinished, unfinished_file(file));
      ready.ready_models.push_back(std::move(unfinished));
    }
    if (missing.empty()) return {};
    progress_("writing the model in mappable form", 0.05);
    BERTH_TRY(start(ready, stop_));
    for (std::size_t i = 0; i < missing.size(); ++i) {
      BERTH_TRY(seal_model(ready.ready_models[i], model_stamp_));
      BERTH_TRY(publish(ready.ready_models[i], missing[i]));
    }
    return {};
  }

  // Finds out in which form each mappable model needs the least memory with these inputs, unless that is known, and
  // takes it. It is never an error that there is no better one than the engine's own.
  Result<void> choose_orders() {
    std::string stamp = stamp_ + "\norder";
    for (const std::string& key : keys_) stamp += "\n" + key;
    Checksum sum;
    sum.add(stamp);
    const std::string end = "-" + hex(sum.value());
    orders_file_ = cache_file(fs::path(cached_plans_).stem().stem().string() + end + ".berth-order");
    ordered_models_.clear();
    for (const std::string& file : berth_.ready_models)
      ordered_models_.push_back(file.substr(0, file.size() - std::string_view(".ort").size()) + end + ".ort");
    if (take_orders(stamp)) {
      from_cache_ = true;
      return {};
    }
    progress_("recording other orders of execution", 0.07);
    WorkerTask order = berth_;
    order.role = "order";
    order.processor = -1;
    for (const std::string& file : ordered_models_) {
      BERTH_TRY_ASSIGN(std::string unfinished, unfinished_file(file));
      order.ordered_models.push_back(std::move(unfinished));
    }
    const Result<Started> worker = start(order, stop_);
    if (!worker) {
      if (worker.error().code() == Code::kCancelled) return worker.error();
      report_.order_note = worker.error().message();
      return {};
    }
    const auto found = worker->loaded.at("orders").get<std::vector<OrderFound>>();
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i].reordered) {
        BERTH_TRY(seal_model(order.ordered_models[i], stamp));
        BERTH_TRY(publish(order.ordered_models[i], ordered_models_[i]));
      }
    BERTH_TRY_ASSIGN(const std::string unfinished, unfinished_file(orders_file_));
    BERTH_TRY(write_whole_file(unfinished, encode_message(Json(found)) + "\n"));
    BERTH_TRY(seal_model(unfinished, stamp));
    BERTH_TRY(publish(unfinished, orders_file_));
    use_orders(found);
    return {};
  }

  // Takes what is known of the orders; false if it is not, or a model that it needs is missing or damaged.
  bool take_orders(const std::string& stamp) {
    if (!is_sealed(orders_file_, stamp)) return false;
    const Result<std::string> text = read_whole_file(orders_file_);
    if (!text) return false;
    const Json all = decode_message(text->substr(0, text->find('\n')));
    if (!all.is_array() || all.size() != ordered_models_.size()) return false;
    const auto found = all.get<std::vector<OrderFound>>();
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i].reordered && !is_sealed(ordered_models_[i], stamp)) return false;
    use_orders(found);
    return true;
  }

  void use_orders(const std::vector<OrderFound>& found) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      report_.plans[i].order = found[i];
      berth_.reuse.push_back(found[i].reuse);
      if (found[i].reordered) berth_.ready_models[i] = ordered_models_[i];
      berth_.stamp += std::string("\n") + (found[i].reordered ? "ordered" : "as written") +
                      (found[i].reuse ? "" : " without reuse");
    }
  }

  void remove_cached() const {
    std::error_code ignored;
    for (const std::string& file : berth_.ready_models) fs::remove(file, ignored);
    for (const std::string& file : ordered_models_) fs::remove(file, ignored);
    if (!orders_file_.empty()) fs::remove(orders_file_, ignored);
    fs::remove(cached_plans_, ignored);
  }

  // Takes saved plans for this run; false if there are none for all of these models and inputs.
  Result<bool> take_plans(const std::string& file) {
    const Result<std::string> saved = internal::read_whole_file(file);
    const Result<DevicePtr> cpu = device("CPU");
    if (!saved || !cpu) return false;
    Replay replay(*cpu, *cpu);
    if (!replay.load_plans(*saved, berth_.stamp)) return false;
    report_.live_peak = report_.stock_live_peak = report_.plan_bytes = report_.lower_bound = 0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const auto trace = replay.trace(keys_[i]);
      const auto plan = replay.plan(keys_[i]);
      if (trace == nullptr || plan == nullptr) return false;
      report_.plans[i].trace = *trace;
      report_.plans[i].plan = *plan;
      report_.live_peak = std::max(report_.live_peak, trace->live_peak());
      const std::uint64_t as_written = report_.plans[i].order.as_written_peak;
      report_.stock_live_peak = std::max(report_.stock_live_peak, as_written != 0 ? as_written : trace->live_peak());
      if (plan->size >= report_.plan_bytes) {
        report_.plan_bytes = plan->size;
        report_.lower_bound = plan->lower_bound;
      }
    }
    BERTH_TRY(internal::write_whole_file(berth_.plans, *saved));
    return true;
  }

  // Lets the engine's own arena serve the recorded requests, in a separate process. Only for the picture: left out if
  // it fails.
  void draw_stock_arena() {
    WorkerTask layout = berth_;
    layout.role = "layout";
    layout.ready_models.clear();
    layout.reuse.clear();
    const Result<Started> drawn = start(layout, stop_);
    if (drawn) report_.plans[0].layout = stack_regions(report_.plans[0].trace, drawn->loaded.at("layout"));
  }

  // Starts the worker that replays, and runs it once. What came from the cache and does not load, or gives other bits,
  // is made anew, once.
  Result<Side> start_replay() {
    for (bool again = from_cache_;; again = false) {
      report_.berth = {};
      Result<Started> replayer = start(berth_, stop_);
      if (replayer) {
        Side side{*std::move(replayer), report_.berth, {}, {}};
        const Result<void> ran = side.run(false);
        if (ran && (report_.berth.repeats || !again)) return side;
        if (!ran && !again) return ran.error();
      } else if (!again || replayer.error().code() == Code::kCancelled) {
        return replayer.error();
      }
      remove_cached();
      BERTH_TRY(prepare_all());
    }
  }

  Result<RunReport> compare(Side stock) {
    BERTH_TRY(stock.run(false));
    BERTH_TRY_ASSIGN(Side berth, start_replay());
    for (unsigned i = 1; i < kStockWarmups + settings_.runs; ++i) {
      progress_("running", 0.2 + 0.8 * i / (kStockWarmups + settings_.runs));
      const bool timed = i >= kStockWarmups;
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
  const std::stop_token stop_;
  // Processors differ in their other load. The two sides never run at the same time; with one thread they share one
  // processor.
  const int processor_ = settings_.threads == 1 ? current_processor() : -1;
  std::optional<PrivateFolder> temporary_;   // outputs to compare with; plans and models without a cache
  std::optional<PrivateFolder> unfinished_;  // in the cache, for what is not finished yet
  std::string stamp_, model_stamp_;          // what plans and models are for
  std::vector<std::uint64_t> hashes_;
  std::vector<std::string> keys_;
  WorkerTask berth_;
  std::vector<std::string> ordered_models_;  // where the cache has, or would have, models in another order
  std::string orders_file_;                  // and what is known of the orders
  std::string cached_plans_;                 // where the cache has, or will have, the plans
  bool recording_identical_ = true;
  bool from_cache_ = false;  // plans or a model are of an earlier start
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

WorkerTask make_task(const RunSettings& settings, std::string role) {
  WorkerTask task;
  task.role = std::move(role);
  task.models = settings.models;
  task.threads = settings.threads;
  task.seed = settings.seed;
  task.dims = settings.dims;
  task.inputs = settings.inputs;
  return task;
}

Result<RunReport> measure_run(const RunSettings& settings, const Progress& progress, std::stop_token stop) {
  return Measurement(settings, progress, std::move(stop)).measure();
}

}  // namespace berth::cli
