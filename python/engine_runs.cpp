#include "engine_runs.h"

#include <nanobind/stl/string.h>

#include <atomic>
#include <optional>
#include <utility>

#include "plan_binding.h"

namespace berth::python {

EngineRuns::EngineRuns(Replay& replay) : replay_(replay) {
  static std::atomic<std::uint64_t> numbers{0};
  number_ = std::to_string(numbers.fetch_add(1) + 1);
}

EngineRuns::~EngineRuns() {
  for (const std::string& key : keys_) replay_.forget(key);
}

void EngineRuns::begin(const std::string& kind, const std::vector<std::int64_t>& dimensions) {
  const std::string key = number_ + '|' + kind;
  {
    const std::lock_guard guard(mutex_);
    keys_.insert(key);
  }
  note(replay_.begin_run(key, dimensions));
}

void EngineRuns::end(const std::string& kind, std::vector<std::int64_t> dimensions, bool plans_now, bool failed) {
  const ReplayRun run = replay_.end_run(failed);
  if (run.recorded && plans_now) note(replay_.plan_recorded());
  const std::lock_guard guard(mutex_);
  last_ = run;
  ++runs_;
  last_key_ = number_ + '|' + kind;
  last_dimensions_ = std::move(dimensions);
}

// The plan or the arena could not be made: the run is served by the pool, and the report says why.
void EngineRuns::note(const Result<void>& result) {
  if (result) return;
  const std::lock_guard guard(mutex_);
  problem_ = result.error().message();
}

nb::dict EngineRuns::report() const {
  struct Found {
    ReplayRun last;
    ReplayCounters all;
    std::uint64_t runs = 0, live_peak = 0;
    std::optional<PlannedProblem> planned;
    std::string problem;
  };
  Found found = released([&] {
    Found here;
    std::string key;
    std::vector<std::int64_t> dimensions;
    {
      const std::lock_guard guard(mutex_);
      here.last = last_;
      here.runs = runs_;
      here.problem = problem_;
      key = last_key_;
      dimensions = last_dimensions_;
    }
    here.all = replay_.counters();
    if (const auto trace = replay_.trace(key, dimensions)) {
      here.live_peak = trace->live_peak();
      if (const auto plan = replay_.plan(key, dimensions)) here.planned = PlannedProblem{plan_problem(*trace), *plan};
    }
    return here;
  });
  nb::dict fields;
  fields["runs"] = found.runs;
  fields["recorded"] = found.last.recorded;
  fields["predicted"] = found.last.predicted;
  fields["requests"] = found.last.requests;
  fields["planned"] = found.last.planned;
  fields["reordered"] = found.last.reordered;
  fields["deviated"] = found.last.deviated;
  fields["live_peak"] = found.live_peak;
  fields["arenas"] = found.all.arenas;
  fields["arena_bytes"] = found.all.arena_bytes;
  fields["given_back"] = found.all.given_back;
  fields["pool_bytes"] = found.all.pool_bytes;
  fields["plans"] = found.all.plans;
  fields["problem"] = found.problem.empty() ? nb::object(nb::none()) : nb::cast(found.problem);
  fields["plan"] = found.planned ? nb::cast(std::move(*found.planned)) : nb::object(nb::none());
  return fields;
}

}  // namespace berth::python
