// The worker of `berth run`: a process that loads models in one role, runs them on request, and reports the cost.
// Roles:
//   stock    the engine with its own arena; the first run's outputs become the reference
//   ready    writes each model, optimised, in the form that can be mapped (no runs)
//   order    looks for the form of each mappable model with the lowest live peak (order_worker.h; no requests)
//   record   Berth is the memory; one recorded run, planned and saved
//   replay   Berth is the memory; saved plans are loaded and replayed
//   layout   the engine's own arena serves a recorded run's requests, to see where it puts them
//   serve-stock, serve-berth   a mix of shapes from several threads (serving_worker.h); one answer, and no requests
// The first input line is a WorkerTask; then {"do": "run"} for one run of every model, or {"do": "finish"} for the
// totals. Each is answered by one line.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace berth::cli {

struct WorkerTask {
  std::string role;
  std::vector<std::string> models;          // .onnx files
  std::vector<std::string> ready_models;    // the same, mappable; empty: load the .onnx files
  std::vector<std::string> ordered_models;  // of the role order: where to write a model with its nodes in another order
  std::vector<bool> reuse;  // of each model: whether the engine may reuse the memory of dead tensors; empty: it may
  int threads = 1;
  int processor = -1;  // run on this one only; -1: on any
  std::uint64_t seed = 0;
  std::map<std::string, std::int64_t> dims;
  std::map<std::string, std::string> inputs;
  std::string reference;  // folder for the reference outputs
  std::string plans;      // file with saved plans
  std::string stamp;      // what the plans are for
  std::string output;     // folder for .npy outputs; empty: none
  // Of the roles that serve:
  std::vector<std::vector<std::int64_t>> shapes;  // see set_shape()
  unsigned concurrency = 1;                       // threads that run the model at the same time
  unsigned runs = 20;                             // of each shape
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(WorkerTask, role, models, ready_models, ordered_models, reuse, threads,
                                                processor, seed, dims, inputs, reference, plans, stamp, output, shapes,
                                                concurrency, runs)

// Serves standard input until it ends. Returns the exit code.
int serve_worker();

}  // namespace berth::cli
