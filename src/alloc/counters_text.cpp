// to_string() of the counters of this layer.
#include "base/fields.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/alloc/statistics.h"

namespace berth {

using namespace internal;

std::string to_string(const CachingPoolCounters& counters) {
  return fields({{"live_bytes", counters.live_bytes},
                 {"live_count", counters.live_count},
                 {"cached_bytes", counters.cached_bytes},
                 {"peak_bytes", counters.peak_bytes},
                 {"hits", counters.hits},
                 {"misses", counters.misses},
                 {"refused_releases", counters.refused_releases}});
}

std::string to_string(const GrowableCounters& counters) {
  return fields({{"reserved_bytes", counters.reserved_bytes},
                 {"mapped_bytes", counters.mapped_bytes},
                 {"used_bytes", counters.used_bytes},
                 {"pending_bytes", counters.pending_bytes}});
}

std::string to_string(const DefragmentResult& result) {
  std::string text = fields({{"moved_bytes", result.moved_bytes},
                             {"moved_count", result.moved_count},
                             {"returned_bytes", result.returned_bytes},
                             {"held", result.held.count},
                             {"in_use", result.in_use.count},
                             {"too_large", result.too_large.count},
                             {"failed", result.failed.count},
                             {"not_buffers", result.not_buffers.count}});
  if (!result.finished) text += ", to be continued";
  if (result.error) text += ": " + result.error->message();
  return text;
}

std::string to_string(const OffsetAllocatorCounters& counters) {
  return fields({{"capacity", counters.capacity},
                 {"used", counters.used},
                 {"peak", counters.peak},
                 {"largest_free", counters.largest_free},
                 {"allocations", counters.allocations},
                 {"free_ranges", counters.free_ranges}});
}

std::string to_string(const StatisticsCounters& counters) {
  return to_string(static_cast<const LiveCounters&>(counters)) + ", " +
         fields({{"failures", counters.failures}, {"total_bytes", counters.total_bytes}});
}

}  // namespace berth
