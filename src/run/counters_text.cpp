// to_string() of the counters of this layer.
#include "base/fields.h"
#include "berth/run/replay.h"

namespace berth {

using namespace internal;

std::string to_string(const ReplayCounters& counters) {
  return fields({{"runs", counters.runs},
                 {"recorded_runs", counters.recorded_runs},
                 {"deviating_runs", counters.deviating_runs},
                 {"requests", counters.requests},
                 {"planned", counters.planned},
                 {"reordered", counters.reordered},
                 {"deviated", counters.deviated},
                 {"renewals", counters.renewals},
                 {"plans", counters.plans},
                 {"arena_bytes", counters.arena_bytes},
                 {"pool_bytes", counters.pool_bytes},
                 {"pool_peak", counters.pool_peak},
                 {"beside_peak", counters.beside_peak}});
}

}  // namespace berth
