#include "kv/tiers.h"

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "kv/host_room.h"

namespace berth::internal::kv_cache {

Result<void> Tiers::prepare(std::span<const kv::Tier> tiers, std::span<const std::size_t> page_bytes,
                            std::uint32_t block_tokens, Queue& queue) {
  block_tokens_ = block_tokens;
  page_bytes_.assign(page_bytes.begin(), page_bytes.end());
  for (const std::size_t bytes : page_bytes) {
    offsets_.push_back(slot_bytes_);
    slot_bytes_ += bytes;  // one page of each group fits the budget of the cache, so this does not overflow
  }
  for (const kv::Tier& tier : tiers) {
    if (!tier.allocator && tier.folder.empty())
      return Error(Code::kInvalidArgument, Layer::kAllocator, "tier {} has neither an allocator nor a folder",
                   tiers_.size());
    const std::size_t slots = std::min<std::size_t>(tier.budget / slot_bytes_, 0x3fff'ffff);
    if (slots == 0)
      return Error(Code::kOutOfMemory, Layer::kAllocator, "tier {}: a budget of {b} is less than one block of {b}",
                   tiers_.size(), tier.budget, slot_bytes_);
    BERTH_TRY(
        check_host_room(slots * (sizeof(Entry) + block_tokens * sizeof(Token) + 2 * sizeof(std::uint32_t)), slots));
    Level level;
    BERTH_TRY_ASSIGN(level.store, make_tier_store(tier, slot_bytes_, slots, queue));
    level.entries.resize(slots);
    level.tokens.resize(slots * block_tokens);
    level.buckets.assign(slots, kNone);
    level.free.resize(slots);
    for (std::size_t i = 0; i < slots; ++i) level.free[i] = static_cast<std::uint32_t>(slots - 1 - i);
    level.count.label = tier.label;
    level.count.capacity = slots;
    level.count.block_bytes = slot_bytes_;
    tiers_.push_back(std::move(level));
  }
  return {};
}

std::optional<Tiers::Place> Tiers::find(const Before& before, std::uint32_t hash,
                                        std::span<const Token> tokens) const noexcept {
  for (std::uint32_t t = 0; t < tiers_.size(); ++t) {
    const Level& level = tiers_[t];
    for (std::uint32_t slot = level.buckets[bucket(level, hash)]; slot != kNone; slot = level.entries[slot].chain) {
      const Entry& entry = level.entries[slot];
      if (entry.block.hash == hash && entry.block.before == before &&
          std::memcmp(&level.tokens[std::size_t{slot} * block_tokens_], tokens.data(), block_tokens_ * sizeof(Token)) ==
              0)
        return Place{t, slot};
    }
  }
  return std::nullopt;
}

void Tiers::enter(Place place, const Block& block, std::span<const Token> tokens) noexcept {
  Level& level = tiers_[place.tier];
  Entry& entry = level.entries[place.slot];
  entry.block = block;
  entry.used = true;
  std::uint32_t& head = level.buckets[bucket(level, block.hash)];
  entry.chain = head;
  head = place.slot;
  std::copy_n(tokens.begin(), block_tokens_,
              level.tokens.begin() + static_cast<std::ptrdiff_t>(std::size_t{place.slot} * block_tokens_));
  entry.held = true;
  enter_list(place);
}

void Tiers::remove(Place place) noexcept {
  Level& level = tiers_[place.tier];
  Entry& entry = level.entries[place.slot];
  std::uint32_t* at = &level.buckets[bucket(level, entry.block.hash)];
  while (*at != place.slot) at = &level.entries[*at].chain;
  *at = entry.chain;
  entry = {};
  level.free.push_back(place.slot);
}

void Tiers::enter_list(Place place) noexcept {
  Level& level = tiers_[place.tier];
  Entry& entry = level.entries[place.slot];
  entry.held = false;
  entry.older = level.newest;
  entry.newer = kNone;
  (level.newest == kNone ? level.oldest : level.entries[level.newest].newer) = place.slot;
  level.newest = place.slot;
}

void Tiers::leave_list(Place place) noexcept {
  Level& level = tiers_[place.tier];
  Entry& entry = level.entries[place.slot];
  (entry.older == kNone ? level.oldest : level.entries[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? level.newest : level.entries[entry.newer].older) = entry.older;
  entry.held = true;
}

std::uint32_t Tiers::make_room(std::uint32_t tier, Queue& queue) noexcept {
  Level& level = tiers_[tier];
  if (level.free.empty()) {
    if (level.oldest == kNone) return kNone;
    const Place place{tier, level.oldest};
    leave_list(place);
    if (tier + 1 < tiers_.size()) {
      Level& next = tiers_[tier + 1];
      const std::uint32_t slot = make_room(tier + 1, queue);
      if (slot == kNone) {
        ++next.count.dropped;
      } else if (level.store->move_to(*next.store, place.slot * slot_bytes_, slot * slot_bytes_, slot_bytes_, queue)) {
        const Token* const tokens = &level.tokens[std::size_t{place.slot} * block_tokens_];
        enter({tier + 1, slot}, level.entries[place.slot].block, {tokens, block_tokens_});
        ++next.count.stored;
      } else {
        next.free.push_back(slot);
        ++next.count.failed;
      }
    } else {
      ++level.count.dropped;
    }
    remove(place);
  }
  const std::uint32_t slot = level.free.back();
  level.free.pop_back();
  return slot;
}

Result<void> Tiers::load(Place place, std::uint32_t group, const Window& page, Queue& queue) {
  Level& level = tiers_[place.tier];
  auto loaded = level.store->load(place.slot * slot_bytes_ + offsets_[group], page, queue);
  if (!loaded) ++level.count.failed;
  return loaded;
}

void Tiers::take(Place place, bool loaded) noexcept {
  if (loaded) ++tiers_[place.tier].count.loaded;
  remove(place);
}

void Tiers::forget(Place place) noexcept {
  leave_list(place);
  remove(place);
}

void Tiers::clear() noexcept {
  for (std::uint32_t t = 0; t < tiers_.size(); ++t)
    while (tiers_[t].oldest != kNone) forget({t, tiers_[t].oldest});
}

void Tiers::add_counters(std::vector<kv::CacheCounters::OfTier>& all) const {
  for (const Level& level : tiers_) {
    all.push_back(level.count);
    all.back().blocks = level.entries.size() - level.free.size();
  }
}

std::size_t Tiers::bookkeeping_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Level& level : tiers_)
    bytes += sizeof level + level.entries.capacity() * sizeof(Entry) + level.buckets.capacity() * 4 +
             level.free.capacity() * 4;
  return bytes;
}

Result<void> Tiers::check() const {
  const auto broken = [](const char* what, auto... numbers) {
    return Error(Code::kInvalidData, Layer::kAllocator, what, numbers...);
  };
  for (std::uint32_t t = 0; t < tiers_.size(); ++t) {
    const Level& level = tiers_[t];
    std::uint64_t used = 0, listed = 0;
    for (std::uint32_t slot = 0; slot < level.entries.size(); ++slot) {
      const Entry& entry = level.entries[slot];
      if (!entry.used) continue;
      ++used;
      if (entry.held) return broken("block {} of tier {} is held", slot, t);
      const auto found =
          find(entry.block.before, entry.block.hash, {&level.tokens[std::size_t{slot} * block_tokens_], block_tokens_});
      if (!found || found->tier != t || found->slot != slot)
        return broken("block {} of tier {} is not found by its own tokens", slot, t);
    }
    if (used + level.free.size() != level.entries.size())
      return broken("tier {} has {} blocks, {} free slots and {} slots", t, used, level.free.size(),
                    level.entries.size());
    std::uint32_t before = kNone;
    for (std::uint32_t slot = level.oldest; slot != kNone; slot = level.entries[slot].newer) {
      if (!level.entries[slot].used || level.entries[slot].older != before || ++listed > used)
        return broken("the list of tier {} is broken at slot {}", t, slot);
      before = slot;
    }
    if (listed != used || level.newest != before) return broken("tier {} lists {} of {} blocks", t, listed, used);
  }
  return {};
}

}  // namespace berth::internal::kv_cache
