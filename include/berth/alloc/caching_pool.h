// A caching allocator: keeps released blocks and returns them again without calling the layer below. Any thread may
// call. Each thread has its own cache of a few blocks, so a hit takes no lock and writes no shared cache line. The pool
// must outlive its blocks. Cached blocks are released when the pool is destroyed or their thread exits.
//
//   allocate -> cache of this thread -> shared cache -> the layer below
//   release  -> cache of this thread -> shared cache -> the layer below, when the cache is full
//
// Sizes are rounded up to size classes, eight per power of two: a block is at most 12.5 % larger than requested, or
// less than 64 bytes larger for requests below 512 bytes. A block is reused only for a request with the same class,
// options (usage, host access, alignment) and tag. A block whose last use is not reached yet can be reused at once by
// the timeline that used it (BlockSpec::on), and by other timelines only later.
//
// Block::bytes is the requested size. In debug builds the unused end of a block carries canaries, released host memory
// is overwritten, and the whole structure is checked from time to time. Under AddressSanitizer, cached memory and the
// unused end of a block are poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "berth/alloc/adaptor.h"

namespace berth {

struct CachingPoolOptions {
  // The most bytes that may be cached. Blocks beyond that go back to the layer below.
  std::size_t max_cached_bytes = std::size_t{1} << 30;
  // Blocks larger than this are neither rounded nor cached.
  std::size_t max_block_bytes = std::size_t{256} << 20;
  // The most bytes that may be taken from the layer below, live and cached together, in rounded sizes. 0: no budget.
  std::size_t budget = 0;
  // Called when the budget refuses a request, after the cache was dropped. Returns whether it released something; the
  // request is then retried once.
  std::function<bool(const BlockSpec&)> on_pressure{};
};

// Sizes are rounded to size classes, so live_bytes + cached_bytes is what the layer below provided.
struct CachingPoolCounters {
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t cached_bytes = 0;
  // The highest live_bytes so far. Exact while one thread allocates. With several threads, the highest value observed
  // when one of them reached a new maximum of its own.
  std::size_t peak_bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t refused_releases = 0;  // released twice, or not a block of this pool
};
std::string to_string(const CachingPoolCounters& counters);

class CachingPool : public AllocatorAdaptor {
 public:
  std::string_view name() const noexcept final { return "caching pool"; }

  // allocate() is O(1) on a hit, and then neither allocates heap memory nor builds a string. If the layer below fails
  // for lack of memory, the cache is dropped and the request is retried once; if that fails too, the first error is
  // returned. kOutOfMemory with cause kBudget if the budget refuses.
  //
  // release() of a block that is not live here (released twice, or from another pool) changes nothing and is counted.

  // O(blocks).
  virtual CachingPoolCounters counters() const noexcept = 0;

  // Counts, or releases, the blocks of one tag. O(blocks).
  virtual CachingPoolCounters counters(Name tag) const noexcept = 0;
  virtual std::size_t trim_tag(Name tag) noexcept = 0;

  // Checks the whole structure. kInvalidData with the first inconsistency. O(blocks).
  virtual Result<void> check() const = 0;

 protected:
  using AllocatorAdaptor::AllocatorAdaptor;
};

// Requires: inner is not null.
std::shared_ptr<CachingPool> make_caching_pool(AllocatorPtr inner, CachingPoolOptions options = {});

}  // namespace berth
