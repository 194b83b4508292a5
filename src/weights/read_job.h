// One job of a load: a stretch of a file that one system call scatters to the places of its tensors. Plain functions;
// any thread may call.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weights/byte_source.h"
#include "weights/load_plan.h"

namespace berth::internal::formats {

// The parts of a scattered read. `gap` takes what lies between the pieces.
struct ScatteredRead {
  std::array<iovec, kJobPieces * 2> parts;
  std::size_t count = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::array<std::byte, kGapBytes> gap;

  // `targets` are the first bytes of the buffers by request.
  void set(std::span<const LoadPiece> pieces, std::span<std::byte* const> targets) noexcept;
};

// Reads each piece to its address in host memory, however many calls that takes. kIo.
Result<void> read_scattered(const FileSource& source, std::span<const LoadPiece> pieces,
                            std::span<std::byte* const> targets);

// The error of a read at `offset` that returned `got`: the end of the file, or errno.
Error read_failed(const FileSource& source, std::uint64_t offset, ssize_t got);

}  // namespace berth::internal::formats
