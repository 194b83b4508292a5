// to_string() of the counters of this layer.
#include "base/fields.h"
#include "berth/run/replay.h"

namespace berth {

using namespace internal;

std::string to_string(const ReplayCounters& counters) {
  return fields({{"runs", counters.runs},
                 {"recorded_runs", counters.recorded_runs},
                 {"predicted_runs", counters.predicted_runs},
                 {"deviating_runs", counters.deviating_runs},
                 {"pooled_runs", counters.pooled_runs},
                 {"waits", counters.waits},
                 {"requests", counters.requests},
                 {"planned", counters.planned},
                 {"reordered", counters.reordered},
                 {"deviated", counters.deviated},
                 {"unattributed", counters.unattributed},
                 {"renewals", counters.renewals},
                 {"predictions", counters.predictions},
                 {"unlearned", counters.unlearned},
                 {"plans", counters.plans},
                 {"plan_bytes", counters.plan_bytes},
                 {"forgotten", counters.forgotten},
                 {"arenas", counters.arenas},
                 {"arenas_peak", counters.arenas_peak},
                 {"arena_bytes", counters.arena_bytes},
                 {"given_back", counters.given_back},
                 {"pool_bytes", counters.pool_bytes},
                 {"pool_peak", counters.pool_peak},
                 {"beside_peak", counters.beside_peak}});
}

}  // namespace berth
