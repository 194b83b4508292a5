// Turns load requests into buffers and read jobs, without reading anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/load.h"

namespace berth::internal::formats {

inline constexpr std::uint64_t kJobBytes = std::uint64_t{8} << 20;  // one job is about one system call
inline constexpr std::uint64_t kGapBytes = 4096;                    // gaps up to this size are read and discarded
inline constexpr std::size_t kJobPieces = 500;                      // with their gaps they fit one system call
inline constexpr std::size_t kSlabBytes = std::size_t{64} << 20;    // of tensors that share a storage

// Bytes [offset, offset + bytes) of a file that go to byte `target` of request's buffer.
struct LoadPiece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t target = 0;
  std::uint32_t request = 0;
  std::uint32_t file = 0;
};

// Pieces [first, last), in file order, of one file, none overlapping, with small gaps.
struct LoadJob {
  std::size_t first = 0;
  std::size_t last = 0;
};

struct LoadPlan {
  std::vector<Buffer> buffers;  // one per request
  std::vector<LoadPiece> pieces;
  std::vector<LoadJob> jobs;
  std::uint64_t bytes = 0;
};

// Also allocates the buffers; fails like the allocator.
Result<LoadPlan> plan_load(std::span<const LoadRequest> requests, const AllocatorPtr& allocator,
                           const LoadOptions& options);

}  // namespace berth::internal::formats
