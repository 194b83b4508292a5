// to_string() of the counters of this layer.
#include "base/fields.h"
#include "berth/memory/accounting.h"
#include "berth/memory/device.h"
#include "berth/memory/residency.h"

namespace berth {

using namespace internal;

std::string to_string(const LiveCounters& counters) {
  return fields({{"live_bytes", counters.live_bytes},
                 {"live_count", counters.live_count},
                 {"peak_bytes", counters.peak_bytes},
                 {"allocations", counters.allocations},
                 {"releases", counters.releases}});
}

std::string to_string(const DeviceCounters& counters) {
  return to_string(static_cast<const LiveCounters&>(counters)) + ", " +
         fields({{"pending_bytes", counters.pending_bytes},
                 {"foreign_bytes", counters.foreign_bytes},
                 {"foreign_count", counters.foreign_count}});
}

std::string to_string(const ResidencyCounters& counters) {
  return fields({{"added", counters.added},
                 {"removed", counters.removed},
                 {"commits", counters.commits},
                 {"renewals", counters.renewals},
                 {"members", counters.members}});
}

}  // namespace berth
