// Reads of files that the kernel executes while the program does something else (io_uring on Linux). Used from one
// thread at a time. Destroying a ring waits for the reads that are in progress, because they write to the caller's
// memory.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "berth/base/result.h"

namespace berth::internal {

class ReadRing {
 public:
  struct Done {
    std::uint64_t tag;
    std::int64_t result;  // bytes read, or a negative errno
  };

  // A ring for `depth` reads at once. kUnsupported if the system has none or refuses it, as an old kernel, a sandbox or
  // a setting of the administrator does.
  static Result<std::unique_ptr<ReadRing>> make(unsigned depth);
  virtual ~ReadRing() = default;

  // Adds a scattered read. The parts must exist until its end. Requires: fewer than `depth` reads are in progress.
  virtual void read(int descriptor, const iovec* parts, std::size_t count, std::uint64_t offset,
                    std::uint64_t tag) noexcept = 0;
  // Starts what was added, and waits for one of the reads in progress. kIo if the kernel refuses; the reads that were
  // started go on. Requires: a read was added and has not been returned.
  virtual Result<Done> wait() = 0;
};

}  // namespace berth::internal
