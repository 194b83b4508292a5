// to_string() of the types of this layer.
#include "base/fields.h"
#include "base/utf8.h"
#include "berth/tensor/buffer.h"
#include "berth/tensor/evictable.h"
#include "berth/tensor/step_buffers.h"

namespace berth {

using namespace internal;

std::string to_string(const Buffer& buffer) {
  if (buffer.id() == 0) return "empty";
  std::string text(to_string(buffer.dtype()));
  text += buffer.shape().to_string() + " on " + to_string(buffer.device()) + ", " + format_bytes(buffer.size());
  if (!buffer.is_allocated()) text += ", lazy";
  if (buffer.is_read_only()) text += ", read-only";
  if (buffer.is_foreign()) text += ", foreign";
  if (const Name label = buffer.label()) text += ", label " + quoted(label.text());
  return text;
}

std::string to_string(const StepBuffersCounters& counters) {
  return fields({{"fresh", counters.fresh},
                 {"reused", counters.reused},
                 {"reclaimed", counters.reclaimed},
                 {"used", counters.used},
                 {"free", counters.free},
                 {"registered", counters.registered},
                 {"bytes", counters.bytes}});
}

std::string to_string(const EvictableCounters& counters) {
  return fields({{"resident_bytes", counters.resident_bytes},
                 {"evicted_bytes", counters.evicted_bytes},
                 {"spilled_bytes", counters.spilled_bytes}});
}

}  // namespace berth
