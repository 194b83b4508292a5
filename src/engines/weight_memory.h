// Memory for what an engine allocates while it loads a model: weights, and what its kernels pack from them. These bytes
// are the same in every process that loads the model, so share() looks each block up in a folder of files, one file per
// content, and replaces the pages of the block by those of the file. All processes then use one copy. A block is
// compared with its file byte by byte before it is replaced, so a damaged, foreign or half-written file is never used;
// the mapping is private, so a process that writes to a block gets its own copy of that page.
//
// Any thread may call. Blocks are whole pages; the object must outlive them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/base/result.h"

namespace berth::internal {

class WeightMemory {
 public:
  // Blocks smaller than this are not worth a mapping of their own.
  static constexpr std::size_t kSmallest = 16 * 1024;

  WeightMemory() = default;
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  // Zeroed pages for `bytes` bytes, counted to the load `load`; null if there is no memory.
  void* allocate(std::size_t bytes, std::uint64_t load) noexcept;

  // True if `memory` was allocated here; it is then released. A pointer that is not at the start of a page costs one
  // comparison.
  bool release(void* memory) noexcept;

  struct Shared {
    std::uint64_t bytes = 0;   // in blocks of this load
    std::uint64_t shared = 0;  // of these, in pages of a file
    std::string problem;       // why a block could not be shared; empty if all could
  };
  // Shares the blocks of one load through files in `folder`, which is created if it is missing. O(bytes). A failure
  // leaves blocks as they are and is reported in `problem`. Requires: no other thread writes to or releases the blocks.
  Shared share(const std::string& folder, std::uint64_t load);

 private:
  struct Owned {
    std::size_t bytes = 0;
    std::uint64_t load = 0;
  };

  Mutex mutex_;
  std::unordered_map<std::uintptr_t, Owned> blocks_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal
