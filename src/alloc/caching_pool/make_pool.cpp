#include <algorithm>

#include "alloc/caching_pool/caching_pool.h"
#include "berth/alloc/caching_pool.h"

namespace berth {

using namespace internal;

namespace {

// The caches that this thread used recently, by the slot of the pool; each is open only to its own pool. Trivial, so
// that reading it needs no initialisation guard, and never null.
constexpr std::size_t kRecent = 4;
constinit BiasedLock nobody;
[[gnu::tls_model("initial-exec")]] constinit thread_local BiasedLock* recent[kRecent] = {&nobody, &nobody, &nobody,
                                                                                         &nobody};
constinit thread_local bool thread_ends = false;

void forget(const ThreadCache* cache) noexcept {
  for (BiasedLock*& each : recent)
    if (each == cache) each = &nobody;
}

// All caches of this thread. The destructor retires them when the thread ends.
struct CachesOfThread {
  struct Entry {
    std::uint64_t id;
    std::weak_ptr<CachingPoolImpl> pool;
    std::shared_ptr<ThreadCache> cache;
  };
  std::vector<Entry> entries;

  ~CachesOfThread() {
    // From here on this thread uses the shared cache only: pools below those that are being retired are still used.
    thread_ends = true;
    for (Entry& entry : entries) {
      forget(entry.cache.get());
      if (const auto pool = entry.pool.lock()) pool->retire(*entry.cache);
    }
  }
};
thread_local CachesOfThread caches_of_thread;

std::uint64_t next_pool_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

CachingPoolImpl::CachingPoolImpl(AllocatorPtr inner, CachingPoolOptions options)
    : CachingPool(std::move(inner)),
      id_(next_pool_id()),
      slot_(id_ % kRecent),
      options_(std::move(options)),
      largest_(std::min(options_.max_block_bytes, std::size_t{1} << kLargestClassBits)),
      own_classes_(size_class(largest_ + 1)) {
  join_forks(*this, AcrossFork::Turn::kPool);
}

std::shared_ptr<CachingPool> make_caching_pool(AllocatorPtr inner, CachingPoolOptions options) {
  return std::make_shared<CachingPoolImpl>(std::move(inner), std::move(options));
}

ThreadCache* CachingPoolImpl::find_cache() noexcept {
  if (thread_ends) return nullptr;
  for (const auto& entry : caches_of_thread.entries)
    if (entry.id == id_) {
      recent[slot_] = entry.cache.get();
      return entry.cache.get();
    }
  return nullptr;
}

ThreadCache* CachingPoolImpl::own_cache() noexcept {
  if (ThreadCache* cache = find_cache()) return cache;
  if (thread_ends || !BiasedLock::is_usable()) return nullptr;
  try {
    auto& entries = caches_of_thread.entries;
    std::erase_if(entries, [](const auto& entry) {
      const bool is_gone = entry.pool.expired();
      if (is_gone) forget(entry.cache.get());
      return is_gone;
    });
    entries.reserve(entries.size() + 1);
    auto vacant = std::find_if(caches_.begin(), caches_.end(), [](const auto& each) { return each->is_vacant; });
    if (vacant == caches_.end()) vacant = caches_.insert(vacant, std::make_shared<ThreadCache>());
    (*vacant)->is_vacant = false;
    (*vacant)->open(this);
    entries.push_back({id_, weak_from_this(), *vacant});
  } catch (...) {
    return nullptr;  // without a cache, the thread uses the shared blocks
  }
  return find_cache();
}

// The hot paths make no calls except in tail position, so they save no registers. Every hit pays for each instruction
// here, so whatever can be computed earlier or checked later is not done here.

Result<Block> CachingPoolImpl::allocate(const BlockSpec& spec) {
  PoolNode* node = nullptr;
  if (BiasedLock* const lock = recent[slot_]; lock->enter(this)) [[likely]] {
    ThreadCache& cache = static_cast<ThreadCache&>(*lock);
    CachedGroup& group = *cache.current;
    const std::size_t index = size_class(spec.bytes);
    // The bins of zero bytes and of sizes above the largest cached one are always empty.
    if (group.options == pack_options(spec) && group.asked_alignment == spec.alignment &&
        group.bins[index].head != nullptr) [[likely]] {
      node = group.bins[index].pop();
      cache.latest = node;
      ++cache.hits;
      const std::int64_t live = group.live_bytes.get() + static_cast<std::int64_t>(node->inner.bytes);
      group.live_bytes.set(live);
      const Tail tail = hand_out(*node, spec);
      cache.leave();
      if (live <= group.height && !spec.zero) [[likely]]
        return live_block(*node, spec.bytes, tail);
    } else {
      cache.leave();
    }
  }
  return allocate_slowly(spec, node);
}

void CachingPoolImpl::release(const Block& block, Timepoint last_use) noexcept {
  if (last_use.bits != 0) [[unlikely]]
    return release_slowly(block, last_use);
  BiasedLock* const lock = recent[slot_];
  if (!lock->enter(this)) [[unlikely]]
    return release_slowly(block, last_use);
  ThreadCache& cache = static_cast<ThreadCache&>(*lock);
  PoolNode* node = cache.latest;
  Tail tail = node->load_tail();
  if (tail != tail_of(block) || node->inner.handle != block.handle) [[unlikely]] {
    node = nodes_.find(block.key);
    if (node == nullptr || !node->stands_for(block)) {
      cache.leave();
      return refuse(block);
    }
    tail = node->load_tail();
  }
  CachedGroup* home = cache.current;
  if (node->home != home) [[unlikely]] {
    // A block that another thread allocated belongs to this thread from now on.
    if (node->home->cache != &cache) node->home = home_of(*node, cache.group(node->group));
    home = node->home;
  }
  CachedGroup& group = *home;
  const std::int64_t live = group.live_bytes.get() - static_cast<std::int64_t>(node->inner.bytes);
  if (live < group.floor) [[unlikely]] {
    cache.leave();
    return release_slowly(block, last_use);
  }
  take_in(*node, tail, block, last_use);
  group.bins[node->size_class].push(node);
  group.live_bytes.set(live);
  cache.leave();
}

void CachingPoolImpl::refuse(const Block& block) noexcept {
  if (block.key == 0 && block.bytes == 0) return;  // a block of zero bytes
  refused_releases_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace berth
