// The properties of one Metal GPU, as Metal reports them: a plain value. metal_info() in berth/interop/metal.h returns
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace berth {

struct MetalInfo {
  std::string name{};
  std::uint64_t registry_id = 0;
  bool unified_memory = false;
  std::size_t working_set_bytes = 0;  // the limit that Metal recommends
  std::size_t max_buffer_bytes = 0;
  std::size_t allocated_bytes = 0;  // by this process, as reported by Metal
  bool residency_sets = false;      // false on macOS before 15
};

}  // namespace berth
