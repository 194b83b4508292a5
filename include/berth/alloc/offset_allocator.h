// Allocates offsets in the range [0, capacity) by two-level segregated fit (TLSF), for requests that cannot be planned
// ahead. It accesses no memory, so it can manage a device arena, a file or a descriptor ring as well as host memory.
// Every operation takes constant time (average, because live offsets are indexed by a hash table), adjacent free ranges
// are merged at once, and the same calls return the same offsets on every machine. Not thread-safe. An OffsetAllocator
// is a plain value: a copy has its own state. Requires: one that was moved from is assigned to before it is used again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth {

struct OffsetAllocatorCounters {
  std::uint64_t capacity = 0;      // managed bytes, a multiple of the granule
  std::uint64_t used = 0;          // bytes of live allocations, rounded up to the granule
  std::uint64_t peak = 0;          // highest `used` so far
  std::uint64_t largest_free = 0;  // largest free range
  std::size_t allocations = 0;     // live allocations
  std::size_t free_ranges = 0;     // 0 or 1 if the free bytes are contiguous
};
std::string to_string(const OffsetAllocatorCounters& counters);

class OffsetAllocator {
 public:
  // Manages [0, capacity). Every offset and size is a multiple of `granule`; a remainder of `capacity` smaller than
  // that is not used.
  // kInvalidArgument: the granule is not a power of two, or capacity / granule exceeds the 32 levels of size classes
  // (2^37 granules).
  static Result<OffsetAllocator> make(std::uint64_t capacity, std::uint64_t granule = 64);

  // Returns the offset of `bytes` free bytes, a multiple of `alignment`. A request for zero bytes takes one granule, so
  // that its offset is unique.
  // kInvalidArgument: alignment is not a power of two. kOutOfMemory: no free range was found. The call succeeds
  // whenever the largest free range has at least padded(bytes, alignment) bytes.
  // Constant time, and no heap allocation unless the number of ranges reaches a new maximum.
  Result<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment = 1);

  // Releases an allocation and merges it with adjacent free ranges. Constant time. A refused call changes nothing; it
  // takes O(ranges) to determine the mistake:
  // kNotOwned: the offset is free (released twice, or never allocated).
  // kNotFound: the offset is inside a live allocation but not at its start, or outside the capacity.
  Result<void> release(std::uint64_t offset);

  // The size of the allocation at `offset`, rounded up to the granule. kNotFound if none starts there.
  Result<std::uint64_t> size_of(std::uint64_t offset) const;

  // --- For moving allocations ---
  // The bytes that are free directly before the allocation at `offset`. kNotFound if none starts there.
  Result<std::uint64_t> free_before(std::uint64_t offset) const;

  // Extends the allocation at `offset` down by `bytes`, a multiple of the granule, and returns its new offset. Reserves
  // what the cut() that follows it needs, so that this one allocates nothing. Constant time. A refused call changes
  // nothing. kNotFound if no allocation starts there; kInvalidArgument if the bytes are not a multiple of the granule,
  // or fewer are free before it.
  Result<std::uint64_t> extend_down(std::uint64_t offset, std::uint64_t bytes);

  // Releases the first `front` and the last `back` bytes of an allocation and returns its new offset. Constant time,
  // and no heap allocation if an extend_down() came before it. kNotFound if no allocation starts there;
  // kInvalidArgument if a size is not a multiple of the granule, or nothing would remain.
  Result<std::uint64_t> cut(std::uint64_t offset, std::uint64_t front, std::uint64_t back);

  // The size of a free range that always satisfies allocate(bytes, alignment): the request rounded up to its size class
  // (at most 1/32 more) plus the largest padding for the alignment. Saturates at the largest value.
  std::uint64_t padded(std::uint64_t bytes, std::uint64_t alignment = 1) const noexcept;

  // Releases all allocations. Offsets returned before become unknown.
  void reset() noexcept;

  std::uint64_t capacity() const noexcept { return capacity_; }
  std::uint64_t granule() const noexcept { return std::uint64_t{1} << granule_bits_; }
  std::uint64_t used() const noexcept { return used_ << granule_bits_; }
  std::size_t allocations() const noexcept { return live_; }

  // O(length of the highest non-empty free list).
  OffsetAllocatorCounters counters() const noexcept;

  // Checks the whole structure: ranges tile the capacity, no two adjacent ranges are free, every free range is in the
  // list of its class, bitmaps and index agree. kInvalidData names the first violated rule, which is a bug in this
  // class. O(ranges). Debug builds call it after every change of a small heap and periodically for a large one.
  Result<void> check() const;

 private:
  // Sizes below are in granules.
  static constexpr unsigned kSecondBits = 5;
  static constexpr unsigned kSecond = 1u << kSecondBits;
  static constexpr unsigned kFirst = 33;
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  struct Range {
    std::uint64_t start = 0;
    std::uint64_t size = 0;
    std::uint32_t before = kNone;  // neighbours in the managed range
    std::uint32_t after = kNone;
    std::uint32_t list_prev = kNone;  // neighbours in the free list
    std::uint32_t list_next = kNone;
    bool free = false;
  };
  struct Class {
    unsigned first;
    unsigned second;
  };

  static Class class_of(std::uint64_t size) noexcept;
  static std::uint64_t class_ceiling(std::uint64_t size) noexcept;

  std::uint32_t find_free(std::uint64_t size, std::uint64_t align) const noexcept;
  bool fits(const Range& range, std::uint64_t size, std::uint64_t align) const noexcept;
  void list_insert(std::uint32_t index) noexcept;
  void list_remove(std::uint32_t index) noexcept;
  std::uint32_t take_slot() noexcept;
  void split_after(std::uint32_t index, std::uint64_t size) noexcept;
  void merge_after(std::uint32_t index) noexcept;

  std::size_t index_slot(std::uint64_t start) const noexcept;
  std::uint32_t index_find(std::uint64_t start) const noexcept;
  std::uint32_t find_live(std::uint64_t offset) const noexcept;
  void index_insert(std::uint32_t range) noexcept;
  void index_erase(std::uint64_t start) noexcept;
  void reserve_for_allocate();
  Error not_releasable(std::uint64_t offset) const;
  void check_in_debug();

  std::uint64_t capacity_ = 0;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
  [[maybe_unused]] std::uint64_t changes_ = 0;  // counted in debug builds only
  std::size_t live_ = 0;
  std::size_t free_ranges_ = 0;
  std::size_t cuts_to_come_ = 0;  // each may need two slots
  unsigned granule_bits_ = 0;

  std::uint64_t first_bitmap_ = 0;
  std::array<std::uint32_t, kFirst> second_bitmap_{};
  std::array<std::array<std::uint32_t, kSecond>, kFirst> heads_{};
  std::vector<Range> ranges_;
  std::vector<std::uint32_t> spare_;  // unused slots of ranges_
  std::vector<std::uint32_t> index_;  // open addressing: start -> slot of ranges_, live ranges only
  unsigned index_bits_ = 0;
};

}  // namespace berth
