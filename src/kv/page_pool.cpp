#include "berth/kv/page_pool.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "base/round_up.h"

namespace berth::kv {
using namespace berth::internal;
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
// A pool of one group has large pages of this many pages: one word of the bitmap each.
constexpr std::uint32_t kPagesOfOneGroup = 64;
// The largest large page that is tried, in pages of the largest group. A larger one would leave more of each group's
// last large page unused than rounding the pages up does.
constexpr std::size_t kLargestMultiple = 16;
constexpr std::uint32_t kMostPagesPerLarge = 16'384;

// The least common multiple, or kMost if it overflows.
std::size_t common_multiple(std::size_t a, std::size_t b) {
  const std::size_t factor = b / std::gcd(a, b);
  return a > kMost / factor ? kMost : a * factor;
}

struct Division {
  std::size_t large = 0;
  std::vector<std::uint32_t> per{};
  std::size_t waste = kMost;  // bytes of a large page, in the group that loses most
};

// How many pages of at least `bytes` bytes, a multiple of the alignment, fill `large` bytes without a remainder.
std::uint32_t pages_that_fill(std::size_t large, std::size_t bytes, std::size_t alignment) {
  const std::size_t units = large / alignment;
  std::size_t per = std::min<std::size_t>(large / bytes, kMostPagesPerLarge);
  while (per > 1 && units % per != 0) --per;
  return static_cast<std::uint32_t>(per);
}

Division divide(std::span<const std::size_t> sizes, std::size_t alignment) {
  const std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
  Division best;
  const auto consider = [&](std::size_t large) {
    Division one{.large = large, .waste = 0};
    for (const std::size_t bytes : sizes) {
      one.per.push_back(pages_that_fill(large, bytes, alignment));
      one.waste = std::max(one.waste, large - one.per.back() * bytes);
    }
    // As a fraction: a/b < c/d is a * d < c * b, in floating point since the products may not fit.
    const auto lost = [](const Division& d) { return static_cast<double>(d.waste) / static_cast<double>(d.large); };
    if (best.large == 0 || lost(one) < lost(best)) best = std::move(one);
  };
  std::size_t common = sizes.front();
  for (const std::size_t bytes : sizes)
    if (common != kMost) common = common_multiple(common, bytes);
  if (common != kMost && common / largest <= kLargestMultiple) {
    consider(common);
    return best;
  }
  // A number of alignments with many divisors can be filled with pages of almost any size.
  for (std::size_t k = 1; k <= kLargestMultiple && largest <= kMost / 2 / k; ++k)
    for (const std::size_t divisors : {1u, 12u, 60u, 360u, 2520u, 5040u}) {
      const std::size_t units = round_up(largest * k / alignment, divisors);
      if (units > kMost / 2 / alignment) continue;
      consider(units * alignment);
    }
  return best;
}

}  // namespace

Result<PagePool> PagePool::make(std::span<const std::size_t> page_bytes, std::size_t budget,
                                const PagePoolOptions& options) {
  if (page_bytes.empty() || page_bytes.size() > 64)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a page pool has 1 to 64 groups, not {}",
                 page_bytes.size());
  if (!std::has_single_bit(options.alignment))
    return Error(Code::kInvalidArgument, Layer::kAllocator, "an alignment of {} bytes is not a power of two",
                 options.alignment);
  std::vector<std::size_t> sizes;
  for (std::size_t g = 0; g < page_bytes.size(); ++g) {
    if (page_bytes[g] == 0 || page_bytes[g] > kMost / 256 || options.alignment > kMost / 256)
      return Error(Code::kInvalidArgument, Layer::kAllocator,
                   "pages of {} bytes in group {} with an alignment of {} bytes: use 1 byte to 2^56 bytes",
                   page_bytes[g], g, options.alignment);
    sizes.push_back(round_up(page_bytes[g], options.alignment));
  }
  const bool single = sizes.size() == 1;
  Division division;
  if (single) {
    division = {.large = sizes[0] * kPagesOfOneGroup, .per = {kPagesOfOneGroup}, .waste = 0};
    if (sizes[0] > kMost / kPagesOfOneGroup / 2)
      return Error(Code::kInvalidArgument, Layer::kAllocator, "pages of {} bytes are too large", sizes[0]);
  } else {
    division = divide(sizes, options.alignment);
  }
  const std::size_t unit = single ? sizes[0] : division.large;
  const std::size_t units = budget / unit;
  const std::size_t least = options.reserve_first ? 2 : 1;
  if (units < least)
    return Error(Code::kOutOfMemory, Layer::kAllocator,
                 "a budget of {b} holds no page besides those that are reserved: it needs at least {b}", budget,
                 unit > kMost / least ? kMost : unit * least);
  const std::size_t larges = single ? (units + kPagesOfOneGroup - 1) / kPagesOfOneGroup : units;
  const std::uint32_t most_per = *std::max_element(division.per.begin(), division.per.end());
  if (larges > static_cast<std::size_t>(std::numeric_limits<Page>::max()) / most_per)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "a budget of {b} has more than 2^31 pages: use larger pages", budget);

  PagePool pool;
  pool.large_bytes_ = division.large;
  pool.bytes_ = units * unit;
  pool.words_ = (most_per + 63) / 64;
  pool.table_.resize(larges);
  pool.used_.assign(larges * pool.words_, 0);
  pool.last_room_ = single ? static_cast<std::uint32_t>(units - (larges - 1) * kPagesOfOneGroup) : most_per;
  pool.reserved_slot_ = single && options.reserve_first;
  const bool skips_first = !single && options.reserve_first;
  pool.usable_ = larges - (skips_first ? 1 : 0);
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    Group group;
    group.per = division.per[g];
    group.bytes = division.large / group.per;
    group.capacity = single ? units - (pool.reserved_slot_ ? 1 : 0) : pool.usable_ * group.per;
    group.heads.assign(group.per + 1, kNone);
    group.filled.assign(group.per / 64 + 1, 0);
    pool.groups_.push_back(std::move(group));
  }
  for (std::size_t i = larges; i-- > (skips_first ? 1u : 0u);) {
    pool.table_[i].next = pool.free_head_;
    pool.free_head_ = static_cast<std::uint32_t>(i);
    ++pool.free_;
  }
  return pool;
}

std::uint32_t PagePool::room(std::uint32_t large) const noexcept {
  const std::uint32_t per = groups_[table_[large].group].per;
  if (groups_.size() > 1) return per;
  const std::uint32_t here = large + 1 == table_.size() ? last_room_ : per;
  return here - (reserved_slot_ && large == 0 ? 1 : 0);
}

void PagePool::link(std::uint32_t large) noexcept {
  Large& entry = table_[large];
  if (entry.live == 0) {
    if (entry.group != kFree) --groups_[entry.group].larges;
    entry.group = kFree;
    entry.next = free_head_;
    free_head_ = large;
    ++free_;
    return;
  }
  Group& group = groups_[entry.group];
  entry.previous = kNone;
  entry.next = group.heads[entry.live];
  if (entry.next != kNone) table_[entry.next].previous = large;
  group.heads[entry.live] = large;
  group.filled[entry.live / 64] |= std::uint64_t{1} << entry.live % 64;
}

// Requires: the large page is in a list of its group.
void PagePool::unlink(std::uint32_t large) noexcept {
  const Large& entry = table_[large];
  Group& group = groups_[entry.group];
  if (entry.previous != kNone)
    table_[entry.previous].next = entry.next;
  else
    group.heads[entry.live] = entry.next;
  if (entry.next != kNone) table_[entry.next].previous = entry.previous;
  if (group.heads[entry.live] == kNone) group.filled[entry.live / 64] &= ~(std::uint64_t{1} << entry.live % 64);
}

Page PagePool::take_from(std::uint32_t large) noexcept {
  Group& group = groups_[table_[large].group];
  for (std::uint32_t word = 0; word < words_; ++word) {
    std::uint64_t& bits = used_[std::size_t{large} * words_ + word];
    if (~bits == 0) continue;
    const auto slot = word * 64 + static_cast<std::uint32_t>(std::countr_zero(~bits));
    bits |= std::uint64_t{1} << slot % 64;
    ++table_[large].live;
    ++group.live;
    return static_cast<Page>(large * group.per + slot);
  }
  return kNoPage;
}

Page PagePool::take(std::uint32_t group) noexcept {
  Group& own = groups_[group];
  std::uint32_t large = kNone;
  // The fullest large page with room. The last large page of a pool with one group may be full earlier.
  for (std::size_t word = own.filled.size(); word-- > 0 && large == kNone;) {
    for (std::uint64_t bits = own.filled[word]; bits != 0 && large == kNone;) {
      const auto n = static_cast<std::uint32_t>(63 - std::countl_zero(bits));
      bits &= ~(std::uint64_t{1} << n);
      for (std::uint32_t at = own.heads[word * 64 + n]; at != kNone && large == kNone; at = table_[at].next) {
        if (table_[at].live < room(at)) large = at;
        if (word * 64 + n == own.per) break;  // every page of this list is full
      }
    }
  }
  if (large != kNone) {
    unlink(large);
  } else {
    if (free_head_ == kNone) return kNoPage;
    large = free_head_;
    free_head_ = table_[large].next;
    --free_;
    ++own.larges;
    table_[large].group = static_cast<std::uint8_t>(group);
    // Slots that do not exist are never free.
    for (std::uint32_t word = 0; word < words_; ++word) {
      const std::uint32_t first = word * 64,
                          last = large + 1 == table_.size() && groups_.size() == 1 ? last_room_ : own.per;
      used_[std::size_t{large} * words_ + word] = last >= first + 64 ? 0
                                                  : last <= first    ? ~std::uint64_t{0}
                                                                     : ~std::uint64_t{0} << (last - first);
    }
    if (reserved_slot_ && large == 0) used_[0] |= 1;
    if (room(large) == 0) {
      // Only the reserved page is here.
      link(large);
      return kNoPage;
    }
  }
  const Page page = take_from(large);
  link(large);
  return page;
}

void PagePool::give(std::uint32_t group, Page page) noexcept {
  const std::uint32_t per = groups_[group].per;
  const std::uint32_t large = static_cast<std::uint32_t>(page) / per, slot = static_cast<std::uint32_t>(page) % per;
  unlink(large);
  used_[std::size_t{large} * words_ + slot / 64] &= ~(std::uint64_t{1} << slot % 64);
  --table_[large].live;
  --groups_[group].live;
  link(large);
}

bool PagePool::is_live(std::uint32_t group, Page page) const noexcept {
  if (group >= groups_.size() || page < 0) return false;
  const std::uint32_t per = groups_[group].per;
  const std::uint32_t large = static_cast<std::uint32_t>(page) / per, slot = static_cast<std::uint32_t>(page) % per;
  if (large >= table_.size() || table_[large].group != group) return false;
  if (groups_.size() == 1 && large + 1 == table_.size() && slot >= last_room_) return false;
  if (reserved_slot_ && page == 0) return false;
  return (used_[std::size_t{large} * words_ + slot / 64] >> slot % 64 & 1) != 0;
}

bool PagePool::fits(std::span<const std::uint64_t> extra) const noexcept {
  if (groups_.size() == 1) return extra[0] <= groups_[0].capacity - groups_[0].live;
  std::uint64_t left = usable_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (extra[g] > group.capacity) return false;
    const std::uint64_t needs = (group.live + extra[g] + group.per - 1) / group.per;
    if (needs > left) return false;
    left -= needs;
  }
  return true;
}

std::uint32_t PagePool::donor(std::uint32_t group) const noexcept {
  for (std::uint32_t g = 0; g < groups(); ++g)
    if (g != group && groups_[g].larges * groups_[g].per - groups_[g].live >= groups_[g].per) return g;
  return kNone;
}

std::uint32_t PagePool::emptiest(std::uint32_t group) const noexcept {
  const Group& own = groups_[group];
  for (std::size_t word = 0; word < own.filled.size(); ++word)
    if (own.filled[word] != 0)
      return own.heads[word * 64 + static_cast<std::size_t>(std::countr_zero(own.filled[word]))];
  return kNone;
}

std::size_t PagePool::bookkeeping_bytes() const noexcept {
  std::size_t bytes = table_.capacity() * sizeof(Large) + used_.capacity() * sizeof(std::uint64_t);
  for (const Group& group : groups_) bytes += group.heads.capacity() * 4 + group.filled.capacity() * 8 + sizeof group;
  return bytes;
}

Result<void> PagePool::check() const {
  std::vector<std::uint64_t> live(groups_.size()), larges(groups_.size());
  std::uint64_t free = 0;
  for (std::size_t i = usable_ < table_.size() ? 1 : 0; i < table_.size(); ++i) {
    const Large& entry = table_[i];
    if (entry.group == kFree) {
      ++free;
      continue;
    }
    const Group& group = groups_[entry.group];
    std::uint32_t count = 0;
    for (std::uint32_t slot = 0; slot < group.per; ++slot)
      count += is_live(entry.group, static_cast<Page>(i * group.per + slot)) ? 1 : 0;
    if (count != entry.live || count == 0)
      return Error(Code::kInvalidData, Layer::kAllocator, "large page {} has {} live pages and says {}", i, count,
                   entry.live);
    live[entry.group] += count;
    ++larges[entry.group];
  }
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (live[g] != groups_[g].live || larges[g] != groups_[g].larges)
      return Error(Code::kInvalidData, Layer::kAllocator, "group {} has {} live pages in {} large pages and says {}", g,
                   live[g], larges[g], groups_[g].live);
  if (free != free_)
    return Error(Code::kInvalidData, Layer::kAllocator, "{} large pages are free and the pool says {}", free, free_);
  return {};
}

}  // namespace berth::kv
