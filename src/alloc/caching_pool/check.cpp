// Functions that read a whole pool: counters, explanations, and the check of the structure.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "alloc/caching_pool/caching_pool.h"
#include "base/try.h"
#include "berth/memory/label_counters.h"

namespace berth::internal {

std::size_t CachingPoolImpl::cached_of(const Name* tag) const noexcept {
  if (tag != nullptr) return count_all(tag).cached_bytes;
  std::int64_t sum = shared_cached_;
  for (const auto& cache : caches_)
    cache->for_each_group([&](const CachedGroup& group, auto) { sum += group.cached_bytes(); });
  return static_cast<std::size_t>(std::max<std::int64_t>(sum, 0));
}

// Counts live and cached bytes by visiting every block.
CachingPoolCounters CachingPoolImpl::count_all(const Name* tag) const noexcept {
  CachingPoolCounters result;
  nodes_.for_each([&](const PoolNode& node) {
    mutex_.assert_held();
    const bool is_live = node.is_live();
    if (!is_live && !node.is_cached()) return;
    if (tag != nullptr && groups_[node.group]->tag != *tag) return;
    (is_live ? result.live_bytes : result.cached_bytes) += node.inner.bytes;
    result.live_count += is_live;
  });
  return result;
}

CachingPoolCounters CachingPoolImpl::counters() const noexcept {
  const Lock lock(mutex_);
  CachingPoolCounters result = count_all(nullptr);
  result.peak_bytes = std::max(static_cast<std::size_t>(peak_), result.live_bytes);
  result.hits = shared_hits_;
  with_all_caches([&](const ThreadCache& cache) { result.hits += cache.hits; });
  result.misses = misses_.load(std::memory_order_relaxed);
  result.refused_releases = refused_releases_.load(std::memory_order_relaxed);
  return result;
}

CachingPoolCounters CachingPoolImpl::counters(Name tag) const noexcept {
  const Lock lock(mutex_);
  CachingPoolCounters result = count_all(&tag);
  const auto peak = tag_peaks_.find(tag.id());
  result.peak_bytes =
      std::max(peak == tag_peaks_.end() ? 0 : static_cast<std::size_t>(peak->second), result.live_bytes);
  return result;
}

void CachingPoolImpl::explain(OutOfMemory& report) const {
  {
    const Lock lock(mutex_);
    LabelCounters labels;
    std::size_t live_bytes = 0, live_count = 0, cached = 0, pending = 0;
    nodes_.for_each([&](const PoolNode& node) {
      if (const Tail tail = node.load_tail(); (tail & kNotLive) == 0) {
        labels.add(Name::from_id(static_cast<std::uint16_t>(tail & kLabelBits)), node.inner.bytes);
        live_bytes += node.inner.bytes;
        ++live_count;
      } else if (node.is_cached()) {
        cached += node.inner.bytes;
        if (node.state == NodeState::kPending && !is_reached(Timepoint{node.last_use})) pending += node.inner.bytes;
      }
    });
    report.cached_bytes += cached;
    report.pending_bytes += pending;
    // A layer above that has counted live bytes already knows them better.
    if (report.live_count == 0) {
      report.live_bytes = live_bytes;
      report.live_count = live_count;
      report.peak_bytes = std::max(static_cast<std::size_t>(peak_), live_bytes);
    }
    if (report.holders.empty()) report.holders = labels.holders();
  }
  inner()->explain(report);
}

Result<void> CachingPoolImpl::check() const {
  const Lock lock(mutex_);
  return check_locked();
}

Result<void> CachingPoolImpl::check_locked() const {
  for (const auto& cache : caches_) cache->close();
  BiasedLock::barrier();
  for (const auto& cache : caches_) cache->await_owner();
  auto verdict = check_stopped();
  for (const auto& cache : caches_) cache->open(this);
  return verdict;
}

// Requires: no thread uses its cache.
Result<void> CachingPoolImpl::check_stopped() const {
  const auto broken = [](const char* what, std::int64_t found, std::int64_t expected) {
    return Error(Code::kInvalidData, Layer::kAllocator, what, found, expected);
  };
  std::int64_t listed = 0;
  const std::int64_t made = nodes_.size();
  const auto walk = [&](const PoolNode* head, NodeState state, std::size_t number, std::size_t index,
                        const CachedGroup* home, std::int64_t& bytes) -> Result<void> {
    for (const PoolNode* node = head; node != nullptr; node = node->next) {
      if (node->is_live() || node->state != state)
        return broken("block {} is in a bin but not marked as cached; its state is {}", NodeTable::index(*node),
                      static_cast<std::int64_t>(node->state));
      if (node->group != number || node->size_class != index)
        return broken("block {} of class {} is in the wrong bin", NodeTable::index(*node), node->size_class);
      if (home != nullptr && node->home != home)
        return broken("block {} of class {} is not in its home bin", NodeTable::index(*node), node->size_class);
      bytes += static_cast<std::int64_t>(node->inner.bytes);
      if (++listed > made)
        return broken("bins list more than the {} blocks there are; one of class {} twice", made, index);
    }
    return {};
  };
  std::int64_t shared = 0, quotas = 0;
  for (std::size_t number = 0; number < groups_.size(); ++number)
    for (std::size_t index = 0; index < kSizeClasses; ++index) {
      BERTH_TRY(walk(groups_[number]->idle[index].head, NodeState::kInUse, number, index, nullptr, shared));
      BERTH_TRY(walk(groups_[number]->pending[index].head, NodeState::kPending, number, index, nullptr, shared));
    }
  if (shared != shared_cached_) return broken("{} bytes are shared and {} are counted", shared, shared_cached_);
  for (const auto& cache : caches_)
    for (std::size_t number = 0; number < cache->groups.size(); ++number) {
      const CachedGroup* const group = cache->group(number);
      if (group == nullptr) continue;
      std::int64_t own = 0;
      for (std::size_t index = 0; index < kAllClasses; ++index)
        BERTH_TRY(walk(group->bins[index].head, NodeState::kInUse, number, index, group, own));
      if (own != group->cached_bytes())
        return broken("a thread keeps {} bytes and counts {}", own, group->cached_bytes());
      if (own > group->quota()) return broken("a thread keeps {} bytes with a quota of {}", own, group->quota());
      quotas += group->quota();
    }
  if (quotas != quotas_) return broken("quotas are {} bytes and {} are counted", quotas, quotas_);
  if (quotas_ + shared_cached_ > static_cast<std::int64_t>(options_.max_cached_bytes))
    return broken("{} bytes may be cached, past the bound of {}", quotas_ + shared_cached_,
                  static_cast<std::int64_t>(options_.max_cached_bytes));
  std::int64_t cached = 0, live = 0;
  nodes_.for_each([&](const PoolNode& node) {
    cached += node.is_cached();
    if (node.is_live()) live += static_cast<std::int64_t>(node.inner.bytes);
  });
  if (cached != listed) return broken("{} blocks are marked cached and {} are in bins", cached, listed);
  if (live != live_of(nullptr)) return broken("{} bytes are marked live and {} are counted", live, live_of(nullptr));
  return {};
}

void CachingPoolImpl::check_now_and_then() noexcept {
#ifndef NDEBUG
  const Lock lock(mutex_);
  // Checks every call at first, for tests, then only some calls.
  if (++slow_calls_ > 64 && slow_calls_ % 1024 != 0) return;
  if (const auto sound = check_locked(); !sound) {
    std::fprintf(stderr, "berth: a pool's structure is broken: %s\n", sound.error().message().c_str());
    std::abort();
  }
#endif
}

}  // namespace berth::internal
