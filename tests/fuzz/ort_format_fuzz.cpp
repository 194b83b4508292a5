// Models in the engine's own format from anywhere: looking for their weights must neither crash nor name a place
// outside the file.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engines/ort_format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto places = berth::internal::ort::find_weights(std::as_bytes(std::span(data, size)));
  if (!places) return 0;
  for (const berth::internal::ort::WeightPlace& place : *places) {
    if (place.reference > size - 4 || place.begin < 4 || place.begin > size) std::abort();
    if (place.bytes == 0 || place.bytes > size - place.begin) std::abort();
  }
  return 0;
}
