// The weights in a model of the engine's own format (.ort, a flatbuffer), and how to align them. The engine writes them
// at any multiple of four bytes; kernels that read a vector from there touch two cache lines instead of one, and a run
// from a mapped model takes about 5 % longer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::internal::ort {

// The field numbers of the tables on the way to the graph.
inline constexpr unsigned kSessionModel = 1, kModelGraph = 7;

// The bytes of one initialiser of the main graph.
struct WeightPlace {
  std::uint64_t reference;  // of the 32-bit distance from there to the length that stands before the bytes
  std::uint64_t begin, bytes;
};

// The weights in file order; tensors without bytes of their own, such as strings, are left out. O(initialisers).
// kInvalidData, with the position, for another kind of file or a truncated one.
Result<std::vector<WeightPlace>> find_weights(std::span<const std::byte> file);

inline constexpr std::uint64_t kWeightAlignment = 64;

// Moves every weight of at least a cache line that is not aligned to kWeightAlignment to the end of the file. The space
// left behind takes no room on disk if the file system supports holes. Weights that would end above the limit of a
// flatbuffer (2 GiB) stay where they are. kIo, kInvalidData: the file may then be incomplete.
Result<void> align_weights(const std::string& path);

}  // namespace berth::internal::ort
