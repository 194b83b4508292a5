// The implementation of berth/alloc/caching_pool.h. The hot paths are in make_pool.cpp, the functions that take the
// mutex in slow_path.cpp, and those that read the whole structure in check.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "alloc/caching_pool/parts.h"
#include "base/across_fork.h"
#include "berth/alloc/caching_pool.h"
#include "berth/base/mutex.h"
#include "berth/memory/out_of_memory.h"
#include "berth/memory/queue.h"
#include "memory/poison.h"

namespace berth::internal {

class CachingPoolImpl final : public CachingPool,
                              public std::enable_shared_from_this<CachingPoolImpl>,
                              private internal::AcrossFork {
 public:
  CachingPoolImpl(AllocatorPtr inner, CachingPoolOptions options);
  ~CachingPoolImpl() override;

  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use) noexcept override;
  std::size_t trim(std::size_t keep_bytes) noexcept override;
  void explain(OutOfMemory& report) const override;
  CachingPoolCounters counters() const noexcept override;
  CachingPoolCounters counters(Name tag) const noexcept override;
  std::size_t trim_tag(Name tag) noexcept override;
  Result<void> check() const override;

  // All caches are closed during a fork. In the child, those of other threads are retired.
  void before_fork() noexcept override;
  void after_fork(bool in_child) noexcept override;

  // Called when a thread ends: moves its cached blocks to the shared cache.
  void retire(ThreadCache& cache) noexcept;

 private:
  using Lock = MutexLock;

  // --- Without the mutex ---
  ThreadCache* find_cache() noexcept;
  Tail hand_out(PoolNode& node, const BlockSpec& spec) noexcept;
  void take_in(PoolNode& node, Tail tail, const Block& block, Timepoint last_use) noexcept;
  CachedGroup* home_of(const PoolNode& node, CachedGroup* group) const noexcept;
  [[gnu::cold]] Result<Block> allocate_slowly(const BlockSpec& spec, PoolNode* taken);
  Result<Block> allocate_below(const BlockSpec& spec, std::size_t bytes, std::uint16_t size_class);
  Result<Block> finish_slowly(PoolNode& node, const BlockSpec& spec);
  [[gnu::cold]] void refuse(const Block& block) noexcept;
  [[gnu::cold]] void release_slowly(const Block& block, Timepoint last_use) noexcept;
  Result<void> reserve(const BlockSpec& spec, std::size_t bytes);
  Result<void> zero(const PoolNode& node, const BlockSpec& spec);
  // Returns a list of nodes to the layer below. Returns their bytes.
  std::size_t give_back(PoolNode* list) noexcept;
  std::size_t give_up(std::size_t keep_bytes, const Name* tag) noexcept;
  void check_now_and_then() noexcept;

  // --- With the mutex ---
  std::uint16_t group_number(const BlockSpec& spec) BERTH_REQUIRES(mutex_);
  ThreadCache* own_cache() noexcept BERTH_REQUIRES(mutex_);
  CachedGroup* own_group(ThreadCache* cache, std::uint16_t number) noexcept BERTH_REQUIRES(mutex_);
  PoolNode* take_shared(CachedGroup* group, std::uint16_t number, std::size_t index, TimelineId timeline) noexcept
      BERTH_REQUIRES(mutex_);
  void count(CachedGroup* group, std::uint16_t number, std::int64_t bytes) noexcept BERTH_REQUIRES(mutex_);
  void raise_peaks(CachedGroup* group, std::uint16_t number) noexcept BERTH_REQUIRES(mutex_);
  void share_half(CachedGroup& group, std::uint16_t number, std::size_t index, std::int64_t at_least) noexcept
      BERTH_REQUIRES(mutex_);
  bool keep(CachedGroup& group, const PoolNode& node) noexcept BERTH_REQUIRES(mutex_);
  bool make_room(std::size_t bytes, PoolNode*& leaving) noexcept BERTH_REQUIRES(mutex_);
  void leave(PoolNode* node, PoolNode*& leaving) const noexcept;
  std::size_t take_from_shared(std::size_t wanted, const Name* tag, PoolNode*& leaving) noexcept BERTH_REQUIRES(mutex_);
  std::size_t take_from_cache(ThreadCache& cache, std::size_t wanted, const Name* tag, PoolNode*& leaving) noexcept
      BERTH_REQUIRES(mutex_);
  template <class Visit>
  void with_all_caches(const Visit& visit) const noexcept BERTH_REQUIRES(mutex_);
  std::int64_t live_of(const Name* tag) const noexcept BERTH_REQUIRES(mutex_);
  CachingPoolCounters count_all(const Name* tag) const noexcept BERTH_REQUIRES(mutex_);
  void share_all(ThreadCache& cache) noexcept BERTH_REQUIRES(mutex_);
  void vacate(ThreadCache& cache) noexcept BERTH_REQUIRES(mutex_);
  std::size_t cached_of(const Name* tag) const noexcept BERTH_REQUIRES(mutex_);
  Result<void> check_locked() const BERTH_REQUIRES(mutex_);
  Result<void> check_stopped() const BERTH_REQUIRES(mutex_);

  const std::uint64_t id_;  // never reused, so that a thread cannot take a new pool for an old one
  const std::size_t slot_;  // index of this pool's cache in the table of a thread
  const CachingPoolOptions options_;
  const std::size_t largest_;  // the largest size that is cached
  // The number of classes that threads cache. A class that is partly above the largest size is only shared, so that a
  // thread may always use what it finds in its bins.
  const std::size_t own_classes_;
  NodeTable nodes_;
  std::atomic<std::size_t> held_{0};  // from the layer below
  std::atomic<std::uint64_t> misses_{0}, refused_releases_{0};

  mutable Mutex mutex_;  // guards what follows; not held while the layer below is called
  std::vector<std::unique_ptr<SharedGroup>> groups_ BERTH_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ThreadCache>> caches_ BERTH_GUARDED_BY(mutex_);
  std::unordered_map<std::uint16_t, std::int64_t> tag_peaks_ BERTH_GUARDED_BY(mutex_);
  std::int64_t peak_ BERTH_GUARDED_BY(mutex_) = 0;
  std::int64_t quotas_ BERTH_GUARDED_BY(mutex_) = 0;  // of all caches; with shared_cached_ at most max_cached_bytes
  std::int64_t shared_cached_ BERTH_GUARDED_BY(mutex_) = 0;
  std::uint64_t shared_hits_ BERTH_GUARDED_BY(mutex_) = 0;             // of threads without a cache
  [[maybe_unused]] unsigned slow_calls_ BERTH_GUARDED_BY(mutex_) = 0;  // counted by debug checks
};

// Calls `visit` for every thread cache while its thread cannot use it.
template <class Visit>
void CachingPoolImpl::with_all_caches(const Visit& visit) const noexcept {
  for (const auto& cache : caches_) cache->close();
  BiasedLock::barrier();
  for (const auto& cache : caches_) {
    cache->await_owner();
    visit(*cache);
  }
  for (const auto& cache : caches_) cache->open(this);
}

// The block as returned to the user. It is written as two 16-byte halves directly into the result: writing it in small
// pieces and copying it as a whole right afterwards would stall the processor on each half (store forwarding), at half
// the cost of a hit.
inline Result<Block> live_block(const PoolNode& node, std::size_t asked, Tail tail) noexcept {
  using Half = std::uint64_t __attribute__((vector_size(16)));
  static_assert(2 * sizeof(Half) == sizeof(Block) && offsetof(Block, host) == 8 && offsetof(Block, bytes) == 16);
  Half first;
  std::memcpy(&first, &node.inner, sizeof(Half));
  const Half second{asked, tail};
  Result<Block> result = Block{};
  auto* const bytes = reinterpret_cast<std::byte*>(&*result);
  std::memcpy(bytes, &first, sizeof(Half));
  std::memcpy(bytes + sizeof(Half), &second, sizeof(Half));
  return result;
}

// The group that a released node returns to.
inline CachedGroup* CachingPoolImpl::home_of(const PoolNode& node, CachedGroup* group) const noexcept {
  return group != nullptr && node.size_class < own_classes_ ? group : &no_group;
}

// Makes a cached node live and returns the tail of its block. The caller has removed it from its bin.
inline Tail CachingPoolImpl::hand_out(PoolNode& node, const BlockSpec& spec) noexcept {
  const Tail tail = (node.load_tail() & ~(kNotLive | kLabelBits)) | spec.label.id();
  node.tail.store(tail, std::memory_order_relaxed);
  if constexpr (kDebugMemory || kAddressSanitizer) {
    if (is_markable(node.inner)) {
      asan_unpoison(node.inner.host, node.inner.bytes);
      // The last user's block may have been longer, and its work writes to the end of this one.
      if (!node.has_late_work) {
        write_canary(node.inner.host + spec.bytes, node.inner.bytes - spec.bytes);
        asan_poison(node.inner.host + spec.bytes, node.inner.bytes - spec.bytes);
      }
    }
  }
  return tail;
}

// Makes the node of a live block cached. The caller adds it to a bin. Memory that submitted work still uses is left as
// it is.
inline void CachingPoolImpl::take_in(PoolNode& node, Tail tail, const Block& block,
                                     [[maybe_unused]] Timepoint last_use) noexcept {
  if constexpr (kDebugMemory || kAddressSanitizer) {
    if (is_markable(node.inner) && is_reached(last_use)) {
      const std::size_t asked = std::min(block.bytes, node.inner.bytes);
      if (!node.has_late_work) check_canary(node.inner.host + asked, node.inner.bytes - asked, block.label);
      node.has_late_work = false;
      overwrite_released(node.inner.host, asked);
      asan_poison(node.inner.host, node.inner.bytes);
    }
  }
  node.tail.store(tail + (kOnceMore | kNotLive), std::memory_order_relaxed);
}

}  // namespace berth::internal
