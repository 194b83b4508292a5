// Blocks that were evicted from the pages of a cache and are kept in slower memory. A block is in the pages or in one
// tier, never in both. It is found by the block before it, its hash and its tokens. The block before it may be in the
// pages or in a tier too, so blocks are named by a serial that they keep when they move. What is used longest ago
// leaves a tier for the next one, and the last one for good. Used under the lock of the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_tree.h"
#include "kv/tier_store.h"

namespace berth::internal::kv_cache {

// The block before a block, or the salt if there is none.
struct Before {
  std::uint64_t id = 0;  // the serial, or the salt
  bool is_salt = false;
  friend bool operator==(const Before&, const Before&) = default;
};

class Tiers {
 public:
  struct Place {
    std::uint32_t tier = 0;
    std::uint32_t slot = 0;
  };
  struct Block {
    Before before{};
    std::uint64_t serial = 0;
    std::uint32_t hash = 0;
    std::uint32_t groups = 0;  // bit g: the block has a page in group g
  };

  // `page_bytes` has the size of a page in each group. kInvalidArgument: a tier without a place. kOutOfMemory: a budget
  // that is less than one block. Errors of make_tier_store().
  Result<void> prepare(std::span<const kv::Tier> tiers, std::span<const std::size_t> page_bytes,
                       std::uint32_t block_tokens, Queue& queue);
  bool empty() const noexcept { return tiers_.empty(); }

  std::uint64_t new_serial() noexcept { return ++serial_; }
  std::optional<Place> find(const Before& before, std::uint32_t hash, std::span<const Token> tokens) const noexcept;
  const Block& block(Place place) const noexcept { return tiers_[place.tier].entries[place.slot].block; }

  // Keeps a block that leaves the pages. page(g) is the memory of its page in group g. A block that cannot be kept is
  // lost, which costs only the time to compute it again.
  template <class PageOf>
  void put(const Block& block, std::span<const Token> tokens, Queue& queue, PageOf&& page) noexcept;
  // Copies the page of group g of a block to `page`.
  Result<void> load(Place place, std::uint32_t group, const Window& page, Queue& queue);
  // A block that is held stays where it is. Each is taken, dropped or let go in the end.
  void hold(Place place) noexcept { leave_list(place); }
  void let_go(Place place) noexcept { enter_list(place); }
  // Removes a block. Requires: it is held.
  void take(Place place, bool loaded) noexcept;
  // Removes a block that is not held, since the pages have it now.
  void forget(Place place) noexcept;
  void clear() noexcept;

  void add_counters(std::vector<kv::CacheCounters::OfTier>& all) const;
  std::size_t bookkeeping_bytes() const noexcept;
  Result<void> check() const;

 private:
  static constexpr std::uint32_t kNone = 0xffff'ffff;
  struct Entry {
    Block block{};
    std::uint32_t chain = kNone;  // the next with the same place in the index
    std::uint32_t older = kNone, newer = kNone;
    bool used = false, held = false;
  };
  struct Level {
    std::unique_ptr<TierStore> store{};
    std::vector<Entry> entries{};
    std::vector<Token> tokens{};
    std::vector<std::uint32_t> buckets{};
    std::vector<std::uint32_t> free{};
    std::uint32_t oldest = kNone, newest = kNone;
    kv::CacheCounters::OfTier count{};
  };

  // Blocks after one another have different hashes, so those spread them.
  static std::size_t bucket(const Level& level, std::uint32_t hash) noexcept {
    return std::uint64_t{hash} * level.buckets.size() >> 32;
  }
  // A free slot of the tier, for which another block may move on; kNone if all are held.
  std::uint32_t make_room(std::uint32_t tier, Queue& queue) noexcept;
  void enter(Place place, const Block& block, std::span<const Token> tokens) noexcept;
  void remove(Place place) noexcept;
  void enter_list(Place place) noexcept;
  void leave_list(Place place) noexcept;

  std::vector<Level> tiers_;
  std::vector<std::size_t> page_bytes_;
  std::vector<std::size_t> offsets_;  // of the page of each group in a slot
  std::size_t slot_bytes_ = 0;
  std::uint32_t block_tokens_ = 1;
  std::uint64_t serial_ = 0;
};

template <class PageOf>
void Tiers::put(const Block& block, std::span<const Token> tokens, Queue& queue, PageOf&& page) noexcept {
  Level& level = tiers_[0];
  const std::uint32_t slot = make_room(0, queue);
  if (slot == kNone) {
    ++level.count.dropped;
    return;
  }
  Result<void> stored;
  for (std::uint32_t g = 0; g < page_bytes_.size() && stored; ++g)
    if ((block.groups >> g & 1) != 0) stored = level.store->store(slot * slot_bytes_ + offsets_[g], page(g), queue);
  if (!stored) {
    level.free.push_back(slot);
    ++level.count.failed;
    return;
  }
  ++level.count.stored;
  enter({0, slot}, block, tokens);
}

}  // namespace berth::internal::kv_cache
