#include <cstddef>
#include <cstdint>
#include <span>

#include "table_checks.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace berth::internal::formats;
  const MemorySource source(std::as_bytes(std::span(data, size)));
  if (const auto index = read_safetensors_index(source)) {
    for (const auto& [tensor, file] : index->weight_map) require(file < index->files.size(), "a file number is wrong");
  }
  return 0;
}
