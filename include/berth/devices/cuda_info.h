// The properties of one CUDA GPU, as its driver reports them: a plain value. cuda_info() in berth/interop/cuda.h
// returns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace berth {

struct CudaInfo {
  int ordinal = 0;
  std::string name{};
  std::array<std::uint8_t, 16> uuid{};
  std::size_t total_bytes = 0;
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  int driver_version = 0;  // 13000 is CUDA 13.0
  bool stream_ordered_memory = false;
  bool managed_memory = false;
  bool concurrent_managed_access = false;
  bool virtual_memory = false;
  std::vector<int> peers{};  // ordinals whose memory this GPU can reach directly
};

}  // namespace berth
