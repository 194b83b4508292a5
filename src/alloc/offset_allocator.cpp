#include "berth/alloc/offset_allocator.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

#include "base/round_up.h"
#include "base/try.h"
#include "memory/check_alignment.h"

namespace berth {

using namespace internal;

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
// The number of ranges of the request's own class that are tried if no higher class has one. Bounded, so that allocate
// takes constant time; without it, a single free range of exactly the requested size would be missed.
constexpr int kOwnClassTries = 16;

std::uint64_t add_saturating(std::uint64_t a, std::uint64_t b) noexcept {
  return a > kMost - b ? kMost : a + b;
}

}  // namespace

Result<OffsetAllocator> OffsetAllocator::make(std::uint64_t capacity, std::uint64_t granule) {
  if (!std::has_single_bit(granule))
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a granule of {} bytes is not a power of two", granule);
  OffsetAllocator heap;
  heap.granule_bits_ = static_cast<unsigned>(std::countr_zero(granule));
  const std::uint64_t granules = capacity >> heap.granule_bits_;
  if (granules >> (kFirst + kSecondBits - 1) != 0)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "{} bytes in granules of {} bytes are more than 2^{} granules: use a larger granule", capacity,
                 granule, kFirst + kSecondBits - 1);
  heap.capacity_ = granules << heap.granule_bits_;
  heap.index_bits_ = 6;
  heap.index_.assign(std::size_t{1} << heap.index_bits_, kNone);
  heap.ranges_.reserve(32);
  heap.spare_.reserve(32);
  heap.reset();
  return heap;
}

void OffsetAllocator::reset() noexcept {
  for (auto& row : heads_) row.fill(kNone);
  second_bitmap_.fill(0);
  first_bitmap_ = 0;
  std::fill(index_.begin(), index_.end(), kNone);
  ranges_.clear();
  spare_.clear();
  used_ = peak_ = 0;
  live_ = free_ranges_ = cuts_to_come_ = 0;
  if (capacity_ == 0) return;
  const std::uint32_t all = take_slot();
  ranges_[all] = {};
  ranges_[all].size = capacity_ >> granule_bits_;
  list_insert(all);
}

// Sizes below 32 granules have one class each. Above, each power of two has 32 classes.
OffsetAllocator::Class OffsetAllocator::class_of(std::uint64_t size) noexcept {
  if (size < kSecond) return {0, static_cast<unsigned>(size)};
  const unsigned top = 63u - static_cast<unsigned>(std::countl_zero(size));
  return {top - kSecondBits + 1, static_cast<unsigned>(size >> (top - kSecondBits)) & (kSecond - 1)};
}

// The smallest size such that every range of its class or a higher one holds `size`.
std::uint64_t OffsetAllocator::class_ceiling(std::uint64_t size) noexcept {
  if (size < kSecond) return size;
  const unsigned top = 63u - static_cast<unsigned>(std::countl_zero(size));
  const std::uint64_t step = std::uint64_t{1} << (top - kSecondBits);
  return size > kMost - (step - 1) ? kMost : round_up(size, step);
}

std::uint64_t OffsetAllocator::padded(std::uint64_t bytes, std::uint64_t alignment) const noexcept {
  const std::uint64_t unit = granule();
  const std::uint64_t size = std::max<std::uint64_t>(1, (bytes >> granule_bits_) + ((bytes & (unit - 1)) != 0));
  const std::uint64_t slack = alignment > unit ? (alignment >> granule_bits_) - 1 : 0;
  const std::uint64_t need = class_ceiling(add_saturating(size, slack));
  return need > (kMost >> granule_bits_) ? kMost : need << granule_bits_;
}

bool OffsetAllocator::fits(const Range& range, std::uint64_t size, std::uint64_t align) const noexcept {
  const std::uint64_t lead = round_up(range.start, align) - range.start;
  return lead <= range.size && range.size - lead >= size;
}

std::uint32_t OffsetAllocator::find_free(std::uint64_t size, std::uint64_t align) const noexcept {
  const auto at_least = [&](std::uint64_t wanted) -> std::uint32_t {
    const Class c = class_of(wanted);
    if (c.first >= kFirst) return kNone;
    const std::uint32_t same_row = second_bitmap_[c.first] & (~0u << c.second);
    if (same_row != 0) return heads_[c.first][static_cast<unsigned>(std::countr_zero(same_row))];
    const std::uint64_t higher = first_bitmap_ & (~std::uint64_t{0} << (c.first + 1));
    if (higher == 0) return kNone;
    const auto row = static_cast<unsigned>(std::countr_zero(higher));
    return heads_[row][static_cast<unsigned>(std::countr_zero(second_bitmap_[row]))];
  };
  // A range that holds the request at any start; before that, if alignment matters, one that happens to start at a
  // suitable offset.
  const std::uint32_t tight = at_least(class_ceiling(size));
  if (tight != kNone && fits(ranges_[tight], size, align)) return tight;
  if (align > 1) {
    const std::uint32_t roomy = at_least(class_ceiling(add_saturating(size, align - 1)));
    if (roomy != kNone) return roomy;
  }
  const Class own = class_of(size);
  if (own.first >= kFirst) return kNone;
  std::uint32_t candidate = heads_[own.first][own.second];
  for (int tries = 0; candidate != kNone && tries < kOwnClassTries; ++tries) {
    if (fits(ranges_[candidate], size, align)) return candidate;
    candidate = ranges_[candidate].list_next;
  }
  return kNone;
}

Result<std::uint64_t> OffsetAllocator::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  BERTH_TRY(check_alignment(alignment, Layer::kAllocator));
  const std::uint64_t unit = granule();
  const std::uint64_t size = std::max<std::uint64_t>(1, (bytes >> granule_bits_) + ((bytes & (unit - 1)) != 0));
  const std::uint64_t align = std::max(alignment, unit) >> granule_bits_;
  const std::uint32_t found = size <= (capacity_ >> granule_bits_) ? find_free(size, align) : kNone;
  if (found == kNone) {
    const OffsetAllocatorCounters now = counters();
    return Error(Code::kOutOfMemory, Layer::kAllocator,
                 "asked for {b} aligned to {}, but of {b} free bytes the longest range has {b}", bytes, alignment,
                 now.capacity - now.used, now.largest_free);
  }
  reserve_for_allocate();

  list_remove(found);
  std::uint32_t index = found;
  const std::uint64_t lead = round_up(ranges_[index].start, align) - ranges_[index].start;
  if (lead != 0) {
    // Alignment padding becomes a free range. The range before it is in use, since adjacent free ranges are merged.
    split_after(index, lead);
    list_insert(index);
    index = ranges_[index].after;
  }
  if (ranges_[index].size > size) {
    split_after(index, size);
    list_insert(ranges_[index].after);
  }
  ranges_[index].free = false;
  index_insert(index);
  used_ += size;
  peak_ = std::max(peak_, used_);
  ++live_;
  check_in_debug();
  return ranges_[index].start << granule_bits_;
}

Result<void> OffsetAllocator::release(std::uint64_t offset) {
  const std::uint32_t index = find_live(offset);
  if (index == kNone) return not_releasable(offset);
  index_erase(ranges_[index].start);
  used_ -= ranges_[index].size;
  --live_;
  std::uint32_t whole = index;
  if (const std::uint32_t before = ranges_[index].before; before != kNone && ranges_[before].free) {
    list_remove(before);
    merge_after(before);
    whole = before;
  }
  if (const std::uint32_t after = ranges_[whole].after; after != kNone && ranges_[after].free) {
    list_remove(after);
    merge_after(whole);
  }
  list_insert(whole);
  check_in_debug();
  return {};
}

Result<std::uint64_t> OffsetAllocator::size_of(std::uint64_t offset) const {
  const std::uint32_t index = find_live(offset);
  if (index == kNone) return Error(Code::kNotFound, Layer::kAllocator, "no allocation starts at offset {}", offset);
  return ranges_[index].size << granule_bits_;
}

Result<std::uint64_t> OffsetAllocator::free_before(std::uint64_t offset) const {
  const std::uint32_t index = find_live(offset);
  if (index == kNone) return Error(Code::kNotFound, Layer::kAllocator, "no allocation starts at offset {}", offset);
  const std::uint32_t before = ranges_[index].before;
  return before == kNone || !ranges_[before].free ? 0 : ranges_[before].size << granule_bits_;
}

Result<std::uint64_t> OffsetAllocator::extend_down(std::uint64_t offset, std::uint64_t bytes) {
  BERTH_TRY_ASSIGN(const std::uint64_t room, free_before(offset));
  if (bytes > room || (bytes & (granule() - 1)) != 0)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "an allocation cannot be extended down by {} bytes: {} are free before it, in granules of {}", bytes,
                 room, granule());
  ++cuts_to_come_;
  try {
    reserve_for_allocate();
  } catch (...) {
    --cuts_to_come_;
    throw;
  }
  if (bytes == 0) return offset;
  const std::uint64_t size = bytes >> granule_bits_;
  const std::uint32_t index = find_live(offset);
  const std::uint32_t before = ranges_[index].before;
  index_erase(ranges_[index].start);
  list_remove(before);
  if (ranges_[before].size > size) {
    ranges_[before].size -= size;
    list_insert(before);
  } else {
    ranges_[index].before = ranges_[before].before;
    if (ranges_[before].before != kNone) ranges_[ranges_[before].before].after = index;
    ranges_[before] = {};
    spare_.push_back(before);
  }
  ranges_[index].start -= size;
  ranges_[index].size += size;
  index_insert(index);
  used_ += size;
  peak_ = std::max(peak_, used_);
  check_in_debug();
  return offset - bytes;
}

Result<std::uint64_t> OffsetAllocator::cut(std::uint64_t offset, std::uint64_t front, std::uint64_t back) {
  BERTH_TRY_ASSIGN(const std::uint64_t bytes, size_of(offset));
  if (((front | back) & (granule() - 1)) != 0 || front >= bytes || back >= bytes - front)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "{} and {} bytes cannot be cut from an allocation of {} bytes in granules of {}", front, back, bytes,
                 granule());
  if (cuts_to_come_ > 0)
    --cuts_to_come_;
  else
    reserve_for_allocate();
  std::uint32_t index = find_live(offset);
  if (front != 0) {
    const std::uint64_t size = front >> granule_bits_;
    index_erase(ranges_[index].start);
    // The slot of the allocation becomes that of the free part, so that both keep their neighbours.
    split_after(index, size);
    const std::uint32_t rest = ranges_[index].after;
    index_insert(rest);
    if (const std::uint32_t before = ranges_[index].before; before != kNone && ranges_[before].free) {
      list_remove(before);
      merge_after(before);
      list_insert(before);
    } else {
      list_insert(index);
    }
    index = rest;
    used_ -= size;
  }
  if (back != 0) {
    const std::uint64_t size = back >> granule_bits_;
    split_after(index, ranges_[index].size - size);
    const std::uint32_t rest = ranges_[index].after;
    if (const std::uint32_t after = ranges_[rest].after; after != kNone && ranges_[after].free) {
      list_remove(after);
      merge_after(rest);
    }
    list_insert(rest);
    used_ -= size;
  }
  check_in_debug();
  return offset + front;
}

Error OffsetAllocator::not_releasable(std::uint64_t offset) const {
  for (const Range& range : ranges_) {
    const std::uint64_t start = range.start << granule_bits_;
    const std::uint64_t end = (range.start + range.size) << granule_bits_;
    if (offset < start || offset >= end) continue;  // a spare slot has size 0
    if (range.free)
      return Error(Code::kNotOwned, Layer::kAllocator,
                   "offset {} is already free, within [{}, {}): it was released twice or never allocated", offset,
                   start, end);
    return Error(Code::kNotFound, Layer::kAllocator,
                 "offset {} is inside the allocation [{}, {}): release takes the offset that allocate gave", offset,
                 start, end);
  }
  return Error(Code::kNotFound, Layer::kAllocator, "offset {} is outside the {} bytes under management", offset,
               capacity_);
}

OffsetAllocatorCounters OffsetAllocator::counters() const noexcept {
  OffsetAllocatorCounters out;
  out.capacity = capacity_;
  out.used = used_ << granule_bits_;
  out.peak = peak_ << granule_bits_;
  out.allocations = live_;
  out.free_ranges = free_ranges_;
  if (first_bitmap_ != 0) {
    const unsigned row = 63u - static_cast<unsigned>(std::countl_zero(first_bitmap_));
    const unsigned column = 31u - static_cast<unsigned>(std::countl_zero(second_bitmap_[row]));
    for (std::uint32_t i = heads_[row][column]; i != kNone; i = ranges_[i].list_next)
      out.largest_free = std::max(out.largest_free, ranges_[i].size << granule_bits_);
  }
  return out;
}

void OffsetAllocator::list_insert(std::uint32_t index) noexcept {
  Range& range = ranges_[index];
  const Class c = class_of(range.size);
  std::uint32_t& head = heads_[c.first][c.second];
  range.free = true;
  range.list_prev = kNone;
  range.list_next = head;
  if (head != kNone) ranges_[head].list_prev = index;
  head = index;
  first_bitmap_ |= std::uint64_t{1} << c.first;
  second_bitmap_[c.first] |= 1u << c.second;
  ++free_ranges_;
}

void OffsetAllocator::list_remove(std::uint32_t index) noexcept {
  const Range& range = ranges_[index];
  if (range.list_next != kNone) ranges_[range.list_next].list_prev = range.list_prev;
  if (range.list_prev != kNone) {
    ranges_[range.list_prev].list_next = range.list_next;
  } else {
    const Class c = class_of(range.size);
    heads_[c.first][c.second] = range.list_next;
    if (range.list_next == kNone) {
      second_bitmap_[c.first] &= ~(1u << c.second);
      if (second_bitmap_[c.first] == 0) first_bitmap_ &= ~(std::uint64_t{1} << c.first);
    }
  }
  --free_ranges_;
}

std::uint32_t OffsetAllocator::take_slot() noexcept {
  if (!spare_.empty()) {
    const std::uint32_t slot = spare_.back();
    spare_.pop_back();
    return slot;
  }
  ranges_.emplace_back();
  return static_cast<std::uint32_t>(ranges_.size() - 1);
}

// Splits off [start + size, end) as a range that is not in a list yet.
void OffsetAllocator::split_after(std::uint32_t index, std::uint64_t size) noexcept {
  const std::uint32_t rest = take_slot();
  Range& range = ranges_[index];
  Range& tail = ranges_[rest];
  tail = {};
  tail.start = range.start + size;
  tail.size = range.size - size;
  tail.before = index;
  tail.after = range.after;
  if (range.after != kNone) ranges_[range.after].before = rest;
  range.after = rest;
  range.size = size;
}

void OffsetAllocator::merge_after(std::uint32_t index) noexcept {
  const std::uint32_t gone = ranges_[index].after;
  ranges_[index].size += ranges_[gone].size;
  ranges_[index].after = ranges_[gone].after;
  if (ranges_[gone].after != kNone) ranges_[ranges_[gone].after].before = index;
  ranges_[gone] = {};
  spare_.push_back(gone);
}

// All growth happens here, before any change: a failed heap allocation leaves the structure unchanged, and release
// never allocates.
void OffsetAllocator::reserve_for_allocate() {
  const std::size_t slots = 2 + 2 * cuts_to_come_;
  if (ranges_.capacity() - ranges_.size() < slots)
    ranges_.reserve(std::max(ranges_.capacity() * 2, ranges_.size() + slots));
  if (spare_.capacity() < ranges_.capacity()) spare_.reserve(ranges_.capacity());
  if ((live_ + 1) * 2 <= index_.size()) return;
  std::vector<std::uint32_t> larger(index_.size() * 2, kNone);
  index_.swap(larger);
  ++index_bits_;
  for (const std::uint32_t range : larger)
    if (range != kNone) index_insert(range);
}

std::size_t OffsetAllocator::index_slot(std::uint64_t start) const noexcept {
  return static_cast<std::size_t>((start * 0x9E3779B97F4A7C15ull) >> (64 - index_bits_));
}

std::uint32_t OffsetAllocator::find_live(std::uint64_t offset) const noexcept {
  return (offset & (granule() - 1)) == 0 ? index_find(offset >> granule_bits_) : kNone;
}

std::uint32_t OffsetAllocator::index_find(std::uint64_t start) const noexcept {
  const std::size_t mask = index_.size() - 1;
  for (std::size_t slot = index_slot(start);; slot = (slot + 1) & mask) {
    const std::uint32_t range = index_[slot];
    if (range == kNone || ranges_[range].start == start) return range;
  }
}

void OffsetAllocator::index_insert(std::uint32_t range) noexcept {
  const std::size_t mask = index_.size() - 1;
  std::size_t slot = index_slot(ranges_[range].start);
  while (index_[slot] != kNone) slot = (slot + 1) & mask;
  index_[slot] = range;
}

// Linear probing without tombstones: entries behind the hole are moved up unless that would put them before their home
// slot.
void OffsetAllocator::index_erase(std::uint64_t start) noexcept {
  const std::size_t mask = index_.size() - 1;
  std::size_t hole = index_slot(start);
  while (ranges_[index_[hole]].start != start) hole = (hole + 1) & mask;
  for (std::size_t next = (hole + 1) & mask; index_[next] != kNone; next = (next + 1) & mask) {
    const std::size_t home = index_slot(ranges_[index_[next]].start);
    if (((next - home) & mask) >= ((next - hole) & mask)) {
      index_[hole] = index_[next];
      hole = next;
    }
  }
  index_[hole] = kNone;
}

Result<void> OffsetAllocator::check() const {
  const auto broken = [](const char* rule, std::uint64_t where = 0) {
    return Error(Code::kInvalidData, Layer::kAllocator, rule, where);
  };
  std::uint32_t first = kNone;
  std::size_t ranges = 0, free_count = 0, live_count = 0;
  std::uint64_t used = 0;
  for (std::uint32_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (range.size == 0) continue;
    ++ranges;
    if (range.before == kNone) {
      if (first != kNone) return broken("two ranges claim to be the first, one at granule {}", range.start);
      first = i;
    }
    if (!range.free) {
      ++live_count;
      used += range.size;
      if (index_find(range.start) != i) return broken("the index misses the allocation at granule {}", range.start);
    }
  }
  if (ranges + spare_.size() != ranges_.size()) return broken("{} slots are neither a range nor spare", spare_.size());
  std::uint64_t end = 0;
  std::size_t walked = 0;
  for (std::uint32_t i = first, previous = kNone; i != kNone; previous = i, i = ranges_[i].after) {
    if (++walked > ranges) return broken("the ranges form a loop");
    const Range& range = ranges_[i];
    if (range.start != end)
      return broken("the range at granule {} does not start where the last one ends", range.start);
    if (range.before != previous) return broken("the range at granule {} forgets its neighbour", range.start);
    if (previous != kNone && range.free && ranges_[previous].free)
      return broken("two free ranges meet at granule {}", range.start);
    end += range.size;
  }
  if (walked != ranges) return broken("{} ranges are linked, not all", walked);
  if (end != capacity_ >> granule_bits_) return broken("the ranges end at granule {}, not at the capacity", end);
  for (unsigned row = 0; row < kFirst; ++row) {
    if (((first_bitmap_ >> row) & 1) != (second_bitmap_[row] != 0 ? 1u : 0u))
      return broken("the first bitmap is wrong in row {}", row);
    for (unsigned column = 0; column < kSecond; ++column) {
      const std::uint32_t head = heads_[row][column];
      if (((second_bitmap_[row] >> column) & 1) != (head != kNone ? 1u : 0u))
        return broken("the second bitmap is wrong in row {}", row);
      for (std::uint32_t i = head, previous = kNone; i != kNone; previous = i, i = ranges_[i].list_next) {
        if (++free_count > ranges) return broken("a free list forms a loop in row {}", row);
        const Class c = class_of(ranges_[i].size);
        if (!ranges_[i].free || c.first != row || c.second != column || ranges_[i].list_prev != previous)
          return broken("the range at granule {} is in a list where it does not belong", ranges_[i].start);
      }
    }
  }
  if (free_count != free_ranges_ || free_count + live_count != ranges)
    return broken("{} ranges are in free lists, not all that are free", free_count);
  if (live_count != live_ || used != used_) return broken("{} live allocations were counted wrongly", live_count);
  const auto indexed = std::count_if(index_.begin(), index_.end(), [](std::uint32_t i) { return i != kNone; });
  if (static_cast<std::size_t>(indexed) != live_) return broken("the index has {} entries too many", indexed);
  return {};
}

void OffsetAllocator::check_in_debug() {
#ifndef NDEBUG
  // Checks every change of a small heap, and of a large one often enough to be near the cause.
  if (ranges_.size() <= 256 || ++changes_ % ranges_.size() == 0) assert(check().has_value());
#endif
}

}  // namespace berth
