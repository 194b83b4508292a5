// The measurements of `berth run`: the same models, stock and with Berth, each in its own process, run in turns.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"
#include "berth/run/replay.h"
#include "run/order_worker.h"

namespace berth::cli {

struct RunSettings {
  std::vector<std::string> models;
  std::string title;  // names in the report; empty: the names of the files and the inputs
  unsigned runs = 20;
  int threads = 1;
  std::uint64_t seed = 0;
  std::map<std::string, std::int64_t> dims;
  std::map<std::string, std::string> inputs;
  std::string output;      // folder for .npy outputs; empty: none
  std::string plan_cache;  // folder for plans and mappable models; empty: a temporary one
  bool map_weights = true;
  bool find_order = true;  // of mappable models: look for an order of execution that needs less memory
};

struct Spread {
  double median = 0, low = 0, high = 0;  // low and high: the middle 80 % of the runs
};
Spread spread_of(std::vector<double> values);

struct SideReport {
  std::uint64_t held = 0;           // stock: the arena, without weights; Berth: the arena and the pool
  std::uint64_t in_use = 0;         // the most of it that was in use at once
  std::uint64_t process_peak = 0;   // VmHWM
  std::uint64_t faults = 0;         // page faults in all runs
  std::uint64_t faults_steady = 0;  // in the last run
  double load_ms = 0;
  Spread latency_ms;    // wall time of a run
  Spread cpu_ms;        // processor time of a run, all threads
  bool repeats = true;  // every output was bit-identical to the reference
};

// One model's plan, for the memory map.
struct ModelPlan {
  std::string name;
  std::string inputs;
  ReplayTrace trace;
  MemoryPlan plan;
  OrderFound order;                   // what was found about its order of execution
  std::vector<std::uint64_t> layout;  // where the engine's own arena puts each request; empty: not known
};

struct RunReport {
  std::string title;
  std::string engine;  // version
  unsigned runs = 0;
  int threads = 1;
  SideReport stock, berth;
  std::vector<ModelPlan> plans;
  std::uint64_t model_bytes = 0;      // the files: what the weights take
  std::uint64_t live_peak = 0;        // of the engine's own requests; several models: the largest
  std::uint64_t stock_live_peak = 0;  // the same of the engine by itself, in its own order
  std::uint64_t lower_bound = 0;      // of the plan that sets the arena's size
  std::uint64_t plan_bytes = 0;
  double planning_ms = 0;            // 0 when the plans came from the cache
  bool planned_now = true;           // false: the plans came from the cache
  std::uint64_t recording_peak = 0;  // VmHWM of the process that recorded and planned; 0: none was needed
  std::uint64_t requests = 0;        // a run's
  std::uint64_t deviated = 0;        // over all runs
  std::uint64_t deviating_runs = 0;
  std::uint64_t renewals = 0;
  bool weights_mapped = false;
  std::string weights_note;  // why not, if mapping was requested
  std::string order_note;    // why no order was looked for, if it was requested

  bool identical() const { return stock.repeats && berth.repeats; }
  double ratio() const;
};

// What a worker of any role is told: the models and their inputs.
struct WorkerTask;
WorkerTask make_task(const RunSettings& settings, std::string role);

// Called before each step with its name and the overall progress, from 0 to 1.
using Progress = std::function<void(std::string_view step, double done)>;

// kIo if a model or folder cannot be read or written. kDeviceUnavailable without ONNX Runtime. kDriver with the message
// of the engine, for example for an input that does not fit. kCancelled after a stop request. Temporary files are
// removed in every case.
Result<RunReport> measure_run(const RunSettings& settings, const Progress& progress, std::stop_token stop = {});

}  // namespace berth::cli
