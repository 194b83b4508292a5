// A caching allocator: blocks that come back are kept and handed out again without asking the layer below. Any
// thread may call; each thread keeps a few blocks of its own, so that a hit takes no lock and touches no shared
// line. Lives as long as its blocks; when it goes, or a thread goes, what was cached goes back.
//
//   allocate -> own blocks of this thread -> shared blocks -> the layer below
//   release  -> own blocks of this thread -> shared blocks -> the layer below, when the cache is full
//
// Sizes are rounded up to classes, eight to each power of two: a block is at most 12.5 % larger than asked, or
// less than 64 bytes larger below 512 bytes. A block is reused only by a request of the same class, options
// (usage, host access, alignment) and tag. A block whose last use is not reached is reused at once by the line
// that used it (BlockSpec::on), by others only later.
//
// Block::bytes is what was asked for. In debug builds the rest of the class carries canaries, released host
// memory is overwritten, and the whole structure is checked now and then; under the address sanitizer, cached
// memory and the rest of a class are poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "berth/alloc/adaptor.h"

namespace berth {

struct CachingPoolOptions {
  // The most that may be held without being live. Past it, blocks go back to the layer below.
  std::size_t max_cached_bytes = std::size_t{1} << 30;
  // Larger blocks are neither rounded nor cached.
  std::size_t max_block_bytes = std::size_t{256} << 20;
  // The most that may be taken from below, live and cached together, in rounded sizes. 0: no budget.
  std::size_t budget = 0;
  // Called when the budget refuses, after the cache was dropped; returns whether it released something, in which
  // case the request is looked at once more.
  std::function<bool(const BlockSpec&)> on_pressure{};
};

// Sizes are those of the classes, so live + cached is what the layer below gave.
struct CachingPoolCounters {
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t cached_bytes = 0;
  // The most bytes live at once. Exact while one thread allocates; with several, the most that was seen when one
  // of them came to a new height of its own.
  std::size_t peak_bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t refused_releases = 0;  // returned twice, or not ours
};

class CachingPool : public AllocatorAdaptor {
 public:
  std::string_view name() const noexcept final { return "caching pool"; }

  // allocate() is O(1) on a hit, and neither allocates heap memory nor builds a string. A miss that fails for
  // want of memory drops the cache, tries once more, and reports the first error. OutOfMemory with cause kBudget
  // when the budget refuses.
  //
  // release() of a block that is not live here (returned twice, or another pool's) changes nothing and is counted.

  // O(blocks).
  virtual CachingPoolCounters counters() const noexcept = 0;

  // What belongs to one tag: counted, and given back together. O(blocks).
  virtual CachingPoolCounters counters(Name tag) const noexcept = 0;
  virtual std::size_t trim_tag(Name tag) noexcept = 0;

  // Walks the whole structure. InvalidData with what disagrees. O(blocks).
  virtual Result<void> check() const = 0;

 protected:
  using AllocatorAdaptor::AllocatorAdaptor;
};

// Requires: inner is not null.
std::shared_ptr<CachingPool> make_caching_pool(AllocatorPtr inner, CachingPoolOptions options = {});

}  // namespace berth
