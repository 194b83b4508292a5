// Profiles of an engine from anywhere: reading one must not crash.
#include <cstdint>
#include <string_view>

#include "engines/node_memory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(berth::internal::ort::read_profile({reinterpret_cast<const char*>(data), size}));
  return 0;
}
