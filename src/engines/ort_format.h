// Where the weights are in a model of the engine's own format (.ort, a flatbuffer), and how to put them where a
// processor reads them fastest. The engine writes them at any multiple of four bytes, and kernels that read a vector at
// a time from there touch two cache lines for one: a run from a mapped model takes some 5 % longer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::ort {

// The bytes of one initialiser of the main graph.
struct WeightPlace {
  std::uint64_t reference;  // of the 32-bit distance from there to the length that stands before the bytes
  std::uint64_t begin, bytes;
};

// In the order of the file; tensors without bytes of their own, such as strings, are left out. O(initialisers).
// InvalidData: not such a file, or one that ends too soon, with the place.
Result<std::vector<WeightPlace>> find_weights(std::span<const std::byte> file);

inline constexpr std::uint64_t kWeightAlignment = 64;

// Makes every weight of a cache line or more start at a multiple of kWeightAlignment, by moving it to the end of the
// file; what is left behind takes no room on disk where the file system can do without it. Weights that would end past
// what a flatbuffer may be long (2 GiB) stay where they are. Io, InvalidData: the file may be half done then.
Result<void> align_weights(const std::string& path);

}  // namespace berth::ort
