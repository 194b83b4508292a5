// Traces from anywhere: parsing must neither crash nor accept a file that a replay could trip over.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "berth/alloc/recording.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto recording = berth::parse_recording(std::as_bytes(std::span(data, size)));
  if (!recording) return 0;
  std::uint64_t allocations = 0;
  for (const berth::RecordedEvent& event : recording->events) {
    if (event.block >= recording->blocks || event.label >= recording->labels.size()) std::abort();
    if (event.is_free ? event.block >= allocations : event.block != allocations++) std::abort();
  }
  if (allocations != recording->blocks) std::abort();
  return 0;
}
