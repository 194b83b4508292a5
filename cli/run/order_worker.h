// The worker of `berth run` that looks for an order of execution: it records a run of each model as the engine wrote it
// and in a few other forms, and keeps the form with the lowest live peak.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "berth/base/result.h"
#include "run/worker.h"

namespace berth::cli {

// What was found for one model.
struct OrderFound {
  std::uint64_t as_written_peak = 0;  // live peak of the engine by itself; 0: not known
  std::uint64_t peak = 0;             // of the form that is kept
  std::uint64_t lower_bound = 0;  // no order has a lower live peak, if every tensor has memory of its own; 0: not known
  bool reordered = false;         // the nodes have another order, in a file of its own
  bool reuse = true;              // whether the engine may keep the memory of a dead tensor for a later one
  unsigned recorded = 0;          // forms that were recorded
  std::string note;               // why no other order was tried
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(OrderFound, as_written_peak, peak, lower_bound, reordered, reuse,
                                                recorded, note)

// One OrderFound per model. Reordered models are written to task.ordered_models. A model is recorded at most four
// times, and after half a minute no further form is tried. Fails only if the model itself cannot be loaded or run.
Result<std::vector<OrderFound>> find_orders(const WorkerTask& task);

}  // namespace berth::cli
