// Whether a model of returns earns more hits than evicting what was used longest ago. Two shadow caches hold the hashes
// that the cache would hold under either rule, for a sample of its blocks that is drawn by their hashes. The sequences
// of the cache are played to both; the cache follows the model while that is ahead by more than chance explains, and
// the plain rule otherwise. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "berth/kv/eviction.h"

namespace berth::internal::kv_cache {

// The hashes of the blocks that are worth most, up to a number. Blocks are dropped a few at a time, so that one costs
// little: the number varies by an eighth around what was asked for.
class ShadowCache {
 public:
  struct Entry {
    std::uint32_t hash = 0;
    std::uint32_t order = 0;  // of the last use; of equal worth, the lower one goes first
    std::uint32_t last = 0;   // when it was used, in milliseconds
    float worth = 0;
    std::uint8_t list = 0;  // that the policy chose
  };

  void reserve(std::uint32_t entries);
  // Uses a block, and returns whether it was there. worth(entry) is asked when blocks have to be dropped. Allocates
  // nothing.
  template <class Worth>
  bool use(const Entry& entry, const Worth& worth) noexcept {
    std::uint32_t* place = &index_[find(entry.hash)];
    const bool hit = *place != kNone;
    if (!hit) {
      if (entries_.size() == most_) {
        for (Entry& old : entries_) old.worth = worth(old);
        drop_least();
        place = &index_[find(entry.hash)];
      }
      *place = static_cast<std::uint32_t>(entries_.size());
      entries_.emplace_back();
    }
    entries_[*place] = entry;
    return hit;
  }
  std::size_t bookkeeping_bytes() const noexcept {
    return entries_.capacity() * sizeof(Entry) + index_.capacity() * sizeof(std::uint32_t);
  }

 private:
  static constexpr std::uint32_t kNone = 0xffff'ffff;
  // The place of a hash in the index: that of its entry, or one that is empty.
  std::size_t find(std::uint32_t hash) const noexcept;
  void drop_least() noexcept;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> index_;  // of entries, by hash; a power of two, at most half full
  std::size_t least_ = 0, most_ = 0;  // entries
};

class PolicyDuel {
 public:
  void reserve(std::uint32_t nodes);

  // A sequence has used these blocks. worth(list, last) is what the model says of a block in a list that was used last
  // at a time.
  template <class Worth>
  void visited(std::span<const kv::Node> path, std::uint32_t now, const kv::Blocks& blocks,
               const Worth& worth) noexcept {
    order_ += static_cast<std::uint32_t>(path.size());
    int ahead = 0;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::uint32_t hash = blocks.hash(path[i]);
      if ((hash * 0x85eb'ca6bu >> 8) % every_ != 0) continue;
      const ShadowCache::Entry entry{.hash = hash,
                                     .order = order_ - static_cast<std::uint32_t>(i),
                                     .last = now,
                                     .list = blocks.notes(path[i]).list};
      ahead += model_.use(entry, [&](const auto& one) { return worth(one.list, one.last); }) ? 1 : 0;
      ahead -= plain_.use(entry, [](const auto&) { return 0.0f; }) ? 1 : 0;
    }
    if (ahead != 0) count(ahead);
  }

  bool model_leads() const noexcept { return model_leads_; }
  std::size_t bookkeeping_bytes() const noexcept { return model_.bookkeeping_bytes() + plain_.bookkeeping_bytes(); }

 private:
  void count(int ahead) noexcept;

  ShadowCache model_, plain_;
  std::uint32_t every_ = 1;  // one of this many blocks is in the sample
  std::uint32_t order_ = 0;
  double ahead_ = 0, squares_ = 1;  // hits of the model more than of the plain rule, by sequence; old ones fade
  bool model_leads_ = false;
};

}  // namespace berth::internal::kv_cache
