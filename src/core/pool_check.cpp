// What looks at a whole pool: counters, explanations, and the check that every block is where it should be.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "berth/label_counters.h"
#include "core/caching_pool.h"

namespace berth {

std::size_t CachingPool::cached_of(const Name* tag) const noexcept {
  if (tag != nullptr) return count_all(tag).cached_bytes;
  std::int64_t sum = shared_cached_;
  for (const auto& cache : caches_) sum += cache->cached_bytes();
  return static_cast<std::size_t>(std::max<std::int64_t>(sum, 0));
}

// What is live and cached, by looking at every block.
PoolCounters CachingPool::count_all(const Name* tag) const noexcept {
  PoolCounters result;
  nodes_.for_each([&](const PoolNode& node) {
    const NodeState state = node.state.load(std::memory_order_relaxed);
    if (state != NodeState::kLive && state != NodeState::kCached) return;
    if (tag != nullptr && groups_[node.group]->tag != *tag) return;
    (state == NodeState::kLive ? result.live_bytes : result.cached_bytes) += node.inner.bytes;
    result.live_count += state == NodeState::kLive;
  });
  return result;
}

PoolCounters CachingPool::counters() const noexcept {
  const Lock lock(mutex_);
  PoolCounters result = count_all(nullptr);
  result.peak_bytes = std::max(static_cast<std::size_t>(peak_), result.live_bytes);
  result.hits = retired_hits_;
  for (const auto& cache : caches_) result.hits += static_cast<std::uint64_t>(cache->hits.get());
  result.misses = misses_.load(std::memory_order_relaxed);
  result.refused_releases = refused_releases_.load(std::memory_order_relaxed);
  return result;
}

PoolCounters CachingPool::counters(Name tag) const noexcept {
  const Lock lock(mutex_);
  PoolCounters result = count_all(&tag);
  const auto peak = tag_peaks_.find(tag.id());
  result.peak_bytes =
      std::max(peak == tag_peaks_.end() ? 0 : static_cast<std::size_t>(peak->second), result.live_bytes);
  return result;
}

void CachingPool::explain(OutOfMemory& report) const {
  {
    const Lock lock(mutex_);
    LabelCounters labels;
    std::size_t live_bytes = 0, live_count = 0, cached = 0, pending = 0;
    nodes_.for_each([&](const PoolNode& node) {
      switch (node.state.load(std::memory_order_relaxed)) {
        case NodeState::kLive:
          labels.add(node.label.load(std::memory_order_relaxed), node.inner.bytes);
          live_bytes += node.inner.bytes;
          ++live_count;
          break;
        case NodeState::kCached: {
          cached += node.inner.bytes;
          if (!is_reached(Timepoint{node.word.load(std::memory_order_relaxed)})) pending += node.inner.bytes;
          break;
        }
        case NodeState::kUnused:
        case NodeState::kLeaving: break;
      }
    });
    report.cached_bytes += cached;
    report.pending_bytes += pending;
    // A layer above that counted already knows better what is live.
    if (report.live_count == 0) {
      report.live_bytes = live_bytes;
      report.live_count = live_count;
      report.peak_bytes = std::max(static_cast<std::size_t>(peak_), live_bytes);
    }
    if (report.holders.empty()) report.holders = labels.holders();
  }
  inner()->explain(report);
}

Result<void> CachingPool::check() const {
  const Lock lock(mutex_);
  return check_locked();
}

Result<void> CachingPool::check_locked() const {
  const auto broken = [](const char* what, std::int64_t found, std::int64_t expected) {
    return Error(Code::kInvalidData, Layer::kAllocator, what, found, expected);
  };
  for (const auto& cache : caches_) cache->lock.revoke();
  BiasedLock::barrier();
  for (const auto& cache : caches_) cache->lock.await_owner();
  auto verdict = [&]() -> Result<void> {
    std::int64_t listed = 0;
    const auto walk = [&](const Bin& bin, std::size_t number, unsigned index, std::int64_t& bytes) -> Result<void> {
      std::uint32_t seen = 0;
      for (const PoolNode* node = bin.head; node != nullptr; node = node->next) {
        if (node->state.load(std::memory_order_relaxed) != NodeState::kCached)
          return broken("block {} is in a bin and not marked cached; its state is {}", NodeTable::index(*node),
                        static_cast<int>(node->state.load(std::memory_order_relaxed)));
        if (node->group != number || node->size_class != index)
          return broken("block {} of class {} is in the wrong bin", NodeTable::index(*node), node->size_class);
        bytes += static_cast<std::int64_t>(node->inner.bytes);
        if (++seen > bin.count) break;
      }
      if (seen != bin.count) return broken("a bin lists {} blocks and counts {}", seen, bin.count);
      listed += seen;
      return {};
    };
    std::int64_t shared = 0, quotas = 0;
    for (std::size_t number = 0; number < groups_.size(); ++number)
      for (unsigned index = 0; index < kSizeClasses; ++index)
        for (const Bin* bin : {&groups_[number]->idle[index], &groups_[number]->pending[index]})
          if (auto ok = walk(*bin, number, index, shared); !ok) return ok;
    if (shared != shared_cached_) return broken("{} bytes are shared and {} are counted", shared, shared_cached_);
    for (const auto& cache : caches_) {
      std::int64_t own = 0;
      for (std::size_t number = 0; number < cache->groups.size(); ++number)
        if (const CachedGroup* group = cache->group(number))
          for (unsigned index = 0; index < kSizeClasses; ++index)
            if (auto ok = walk(group->bins[index], number, index, own); !ok) return ok;
      if (own != cache->cached_bytes())
        return broken("a thread keeps {} bytes and counts {}", own, cache->cached_bytes());
      if (own > cache->quota()) return broken("a thread keeps {} bytes with a quota of {}", own, cache->quota());
      quotas += cache->quota();
    }
    if (quotas != quotas_) return broken("quotas are {} bytes and {} are counted", quotas, quotas_);
    if (quotas_ + shared_cached_ > static_cast<std::int64_t>(options_.max_cached_bytes))
      return broken("{} bytes may be cached, past the bound of {}", quotas_ + shared_cached_,
                    static_cast<std::int64_t>(options_.max_cached_bytes));
    std::int64_t cached = 0, live = 0;
    nodes_.for_each([&](const PoolNode& node) {
      const NodeState state = node.state.load(std::memory_order_relaxed);
      cached += state == NodeState::kCached;
      if (state == NodeState::kLive) live += static_cast<std::int64_t>(node.inner.bytes);
    });
    if (cached != listed) return broken("{} blocks are marked cached and {} are in bins", cached, listed);
    if (live != live_of(nullptr)) return broken("{} bytes are marked live and {} are counted", live, live_of(nullptr));
    return {};
  }();
  for (const auto& cache : caches_) cache->lock.give_back();
  return verdict;
}

void CachingPool::check_now_and_then() noexcept {
#ifndef NDEBUG
  const Lock lock(mutex_);
  // Every call at first, where tests look, then now and then.
  if (++slow_calls_ > 64 && slow_calls_ % 1024 != 0) return;
  if (const auto sound = check_locked(); !sound) {
    std::fprintf(stderr, "berth: a pool's structure is broken: %s\n", sound.error().message().c_str());
    std::abort();
  }
#endif
}

}  // namespace berth
