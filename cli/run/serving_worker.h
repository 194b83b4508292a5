// The worker of `berth run --shapes --concurrency`: a process that loads one model, serves a mix of shapes from several
// threads, and reports what that took. One call for each process.
#pragma once

#include <nlohmann/json.hpp>

#include "berth/base/result.h"
#include "run/worker.h"

namespace berth::cli {

// Serves `task` (roles "serve-stock" and "serve-berth"). Every shape is run twice before time is measured. The answer
// has the totals, and for each shape a checksum of its outputs, whether every run gave it, and with Berth the requests
// and the plan. kInvalidArgument for a shape that does not fit the model's inputs; kDriver with the engine's message.
Result<nlohmann::json> serve_mix(const WorkerTask& task);

}  // namespace berth::cli
