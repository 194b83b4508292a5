// Pages of unequal sizes in one budget. Each group has pages of one size. The pool is divided into large pages, whose
// size is a common multiple of the page sizes; a group takes a large page at a time and divides it into its own pages.
// Since one group's pages may be moved to empty another large page, no group can keep more than a part of one large
// page from the others. The pool holds numbers and accesses no memory. Not thread-safe; a plain value.
//
//   large pages   |      0      |      1      |      2      |
//   group 0       |  0 |  1 | 2 |             |  6 |  7 | 8 |    page p is at byte p * page_bytes(0)
//   group 1                     |   2  |  3   |                  page p is at byte p * page_bytes(1)
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "berth/base/result.h"

namespace berth::kv {

// A page of a group. The bytes of page p of a group are [p * page_bytes, (p + 1) * page_bytes) of the pool.
using Page = std::int32_t;
constexpr Page kNoPage = -1;

struct PagePoolOptions {
  std::size_t alignment = 64;  // of every page; a power of two
  bool reserve_first = false;  // never give out page 0 of any group: kernels often use it as padding
};

class PagePool {
 public:
  struct Move {
    std::uint32_t group;
    Page from;
    Page to;
  };

  // Divides `budget` bytes among groups with pages of `page_bytes[g]` bytes. Page sizes are rounded up to the
  // alignment, and, if the least common multiple of them is large, further so that a smaller multiple serves.
  // kInvalidArgument: no group or more than 64, a page of zero bytes, an alignment that is not a power of two, or sizes
  // that overflow. kOutOfMemory: the budget is smaller than one large page; the message names the size.
  static Result<PagePool> make(std::span<const std::size_t> page_bytes, std::size_t budget,
                               const PagePoolOptions& options = {});

  // A free page of the group, or kNoPage if no large page has room for it and none is free. Takes the page from the
  // fullest large page of the group. O(pages in a large page / 64).
  Page take(std::uint32_t group) noexcept;

  // Returns a page. Requires: `page` is live in `group`.
  void give(std::uint32_t group, Page page) noexcept;

  // True if the groups can hold `extra[g]` more pages each, once make_room() has moved what is in the way.
  bool fits(std::span<const std::uint64_t> extra) const noexcept;

  // Empties one large page of a group other than `group` that has a large page's worth of free pages: calls
  // move(Move) for each live page of it, in which the bytes are to be copied. Returns true if a large page became free,
  // false if no group has that many free pages. If move() returns false, stops with what has been moved, and returns
  // false. O(large pages) at most once for each large page that is freed.
  template <class Mover>
  bool make_room(std::uint32_t group, Mover&& move);

  std::uint32_t groups() const noexcept { return static_cast<std::uint32_t>(groups_.size()); }
  std::size_t page_bytes(std::uint32_t group) const noexcept { return groups_[group].bytes; }
  std::uint32_t pages_per_large(std::uint32_t group) const noexcept { return groups_[group].per; }
  // The pages that the group has if it has the whole pool.
  std::uint64_t capacity(std::uint32_t group) const noexcept { return groups_[group].capacity; }
  std::uint64_t live(std::uint32_t group) const noexcept { return groups_[group].live; }
  // Large pages that hold pages of the group.
  std::uint64_t larges_of(std::uint32_t group) const noexcept { return groups_[group].larges; }
  std::uint64_t larges() const noexcept { return usable_; }
  std::uint64_t free_larges() const noexcept { return free_; }
  std::size_t large_bytes() const noexcept { return large_bytes_; }
  // The bytes that the caller provides: large_bytes() for each large page, with those that are reserved.
  std::size_t bytes() const noexcept { return bytes_; }
  bool is_live(std::uint32_t group, Page page) const noexcept;
  // Bytes that this object holds on the host.
  std::size_t bookkeeping_bytes() const noexcept;
  // Compares every count with what the bitmaps say. kInvalidData names the first difference. O(pages).
  Result<void> check() const;

 private:
  static constexpr std::uint32_t kNone = 0xffff'ffff;
  static constexpr std::uint8_t kFree = 0xff;
  struct Group {
    std::size_t bytes = 0;
    std::uint32_t per = 0;
    std::uint64_t capacity = 0;
    std::uint64_t live = 0;
    std::uint64_t larges = 0;
    std::vector<std::uint32_t> heads{};   // heads[n]: large pages with n live pages
    std::vector<std::uint64_t> filled{};  // bit n: heads[n] is not empty
  };
  struct Large {
    std::uint32_t previous = kNone, next = kNone;
    std::uint16_t live = 0;
    std::uint8_t group = kFree;
  };

  void link(std::uint32_t large) noexcept;
  void unlink(std::uint32_t large) noexcept;
  // Pages of the large page that exist: fewer than `per` in the last one of a pool with one group.
  std::uint32_t room(std::uint32_t large) const noexcept;
  std::uint32_t emptiest(std::uint32_t group) const noexcept;
  Page take_from(std::uint32_t large) noexcept;
  // A group other than `group` from which make_room() can take a large page; kNone if there is none.
  std::uint32_t donor(std::uint32_t group) const noexcept;

  std::vector<Group> groups_;
  std::vector<Large> table_;
  std::vector<std::uint64_t> used_;  // words_ words for each large page; bit s: slot s is live or does not exist
  std::uint32_t words_ = 1;
  std::uint32_t last_room_ = 0;  // of one group: pages of the last large page
  std::uint32_t free_head_ = kNone;
  std::uint64_t free_ = 0;
  std::uint64_t usable_ = 0;
  std::size_t large_bytes_ = 0;
  std::size_t bytes_ = 0;
  bool reserved_slot_ = false;  // of one group: page 0 is not given out
};

template <class Mover>
bool PagePool::make_room(std::uint32_t group, Mover&& move) {
  const std::uint32_t from = donor(group);
  if (from == kNone) return false;
  const std::uint32_t large = emptiest(from);
  // The large page must not receive what leaves it.
  unlink(large);
  const std::uint32_t per = groups_[from].per;
  bool moved_all = true;
  for (std::uint32_t word = 0; word < words_ && moved_all; ++word) {
    std::uint64_t live = used_[std::size_t{large} * words_ + word];
    if (per < (word + 1) * 64) live &= per <= word * 64 ? 0 : (std::uint64_t{1} << (per - word * 64)) - 1;
    for (; live != 0 && moved_all; live &= live - 1) {
      const std::uint32_t slot = word * 64 + static_cast<std::uint32_t>(std::countr_zero(live));
      const Page source = static_cast<Page>(large * per + slot);
      const Page target = take(from);
      moved_all = move(Move{from, source, target});
      // The page that stays is whichever the owner did not move to.
      const std::uint32_t gone = moved_all ? large : static_cast<std::uint32_t>(target) / per;
      const std::uint32_t gone_slot = moved_all ? slot : static_cast<std::uint32_t>(target) % per;
      if (!moved_all) unlink(gone);
      used_[std::size_t{gone} * words_ + gone_slot / 64] &= ~(std::uint64_t{1} << gone_slot % 64);
      --table_[gone].live;
      --groups_[from].live;
      if (!moved_all) link(gone);
    }
  }
  link(large);
  return moved_all;
}

}  // namespace berth::kv
