// What a sharded load needs of the transport: memory that each rank opens to the others, puts into it, and one
// agreement at the end. One object serves one load, on one thread.
#pragma once

#include <cstdint>

#include "berth/base/result.h"
#include "berth/memory/block.h"
#include "berth/tensor/buffer.h"

namespace berth::internal {

class ShardTransport {
 public:
  virtual ~ShardTransport() = default;

  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t ranks() const noexcept = 0;

  // Opens `memory` to the others and learns theirs; waits for all ranks. If this rank failed before, `own` says so and
  // the others are told. Fails if any rank did, or has another `fingerprint`.
  virtual Result<void> begin(const Result<void>& own, const Buffer& memory, std::uint64_t fingerprint) = 0;

  // Gets ready to put to another rank, if that takes time. Requires: begin().
  virtual Result<void> reach(std::uint32_t /*target*/) { return {}; }
  // Starts a copy of `source`, a window of host memory, to byte `offset` of the memory of another rank. The source must
  // stay as it is until wait() for the next mark.
  virtual Result<void> put(std::uint32_t target, std::uint64_t offset, const Window& source) = 0;
  // Marks the puts so far; wait() returns when their sources may change.
  virtual Result<std::uint64_t> mark() = 0;
  virtual Result<void> wait(std::uint64_t mark) = 0;

  // Tells the others whether this rank did all its puts, and waits until all have said so. On success each byte that
  // was put into the memory of this rank has arrived. Closes the memory. Fails with the error of this rank, otherwise
  // with that of another.
  virtual Result<void> finish(Result<void> own) = 0;
};

}  // namespace berth::internal
