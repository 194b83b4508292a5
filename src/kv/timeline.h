// When each page of a cache was in use, and by which sequence: what the memory map draws. Time is the number of calls
// that changed the cache. Used under the lock of the cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "berth/kv/page_pool.h"
#include "berth/plan/memory_map.h"

namespace berth::internal::kv_cache {

class Timeline {
 public:
  // Keeps at most `most` uses; what comes later is left out.
  Timeline(std::size_t most, const kv::PagePool& pool);

  void tick() noexcept { ++now_; }
  void take(std::uint32_t group, kv::Page page, std::uint64_t sequence);
  void give(std::uint32_t group, kv::Page page) noexcept;
  void move(std::uint32_t group, kv::Page from, kv::Page to);
  // One rectangle for each use, named after the group and the sequence that took the page. O(uses).
  MapPanel panel(const kv::PagePool& pool, const std::vector<std::string>& groups) const;
  std::size_t bookkeeping_bytes() const noexcept;

 private:
  static constexpr std::uint32_t kNone = 0xffff'ffff;
  static constexpr std::uint64_t kStillInUse = ~std::uint64_t{0};
  struct Use {
    std::uint64_t first = 0, last = kStillInUse;
    std::uint64_t sequence = 0;
    kv::Page page = kv::kNoPage;
    std::uint32_t group = 0;
  };
  const std::size_t most_;
  std::uint64_t now_ = 0;
  std::uint64_t left_out_ = 0;
  std::vector<Use> uses_;
  std::vector<std::vector<std::uint32_t>> current_;  // [group][page]: its use, or kNone
};

}  // namespace berth::internal::kv_cache
