#include <cstddef>
#include <cstdint>
#include <span>

#include "table_checks.h"
#include "weights/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace berth::internal::formats;
  const MemorySource source(std::as_bytes(std::span(data, size)));
  if (const auto table = read_npz(source)) check_table(*table, size);
  return 0;
}
