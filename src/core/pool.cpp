#include "berth/pool.h"

#include <algorithm>

#include "core/caching_pool.h"

namespace berth {
namespace {

// Which cache of which pool this thread used lately. Trivial, so that reading it needs no guard.
struct Recent {
  std::uint64_t pool;
  ThreadCache* cache;
};
constexpr std::size_t kRecent = 4;
[[gnu::tls_model("initial-exec")]] constinit thread_local Recent recent[kRecent] = {};
constinit thread_local bool thread_ends = false;

// All caches of this thread. Its destructor hands them back when the thread ends.
struct CachesOfThread {
  struct Entry {
    std::uint64_t id;
    std::weak_ptr<CachingPool> pool;
    std::shared_ptr<ThreadCache> cache;
  };
  std::vector<Entry> entries;

  ~CachesOfThread() {
    // From here on this thread goes the shared way: pools below those that are retired now are still used.
    thread_ends = true;
    for (Recent& slot : recent) slot = {};
    for (Entry& entry : entries)
      if (const auto pool = entry.pool.lock()) pool->retire(entry.cache);
  }
};
thread_local CachesOfThread caches_of_thread;

std::uint64_t next_pool_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

CachingPool::CachingPool(AllocatorPtr inner, PoolOptions options)
    : Pool(std::move(inner)),
      id_(next_pool_id()),
      options_(std::move(options)),
      largest_(std::min(options_.max_block_bytes, std::size_t{1} << kLargestClassBits)) {}

std::shared_ptr<Pool> pool(AllocatorPtr inner, PoolOptions options) {
  return std::make_shared<CachingPool>(std::move(inner), std::move(options));
}

ThreadCache* CachingPool::find_cache() noexcept {
  if (thread_ends) return nullptr;
  for (const auto& entry : caches_of_thread.entries)
    if (entry.id == id_) {
      recent[id_ % kRecent] = {id_, entry.cache.get()};
      return entry.cache.get();
    }
  return nullptr;
}

ThreadCache* CachingPool::own_cache() noexcept {
  if (ThreadCache* cache = find_cache()) return cache;
  if (thread_ends) return nullptr;
  try {
    auto& entries = caches_of_thread.entries;
    std::erase_if(entries, [](const auto& entry) { return entry.pool.expired(); });
    entries.reserve(entries.size() + 1);
    caches_.reserve(caches_.size() + 1);
    auto cache = std::make_shared<ThreadCache>();
    entries.push_back({id_, weak_from_this(), cache});
    caches_.push_back(std::move(cache));
  } catch (...) {
    return nullptr;  // without a cache of its own the thread uses the shared blocks
  }
  return find_cache();
}

// The hot paths make no calls but in the last place, so that they save no registers.

Result<Block> CachingPool::allocate(const BlockSpec& spec) {
  const Recent& slot = recent[id_ % kRecent];
  // Zero bytes wrap around and go the slow way.
  if (slot.pool != id_ || spec.bytes - 1 >= largest_) [[unlikely]]
    return allocate_slowly(spec);
  ThreadCache& cache = *slot.cache;
  if (!cache.lock.enter()) [[unlikely]]
    return allocate_slowly(spec);
  const std::uint32_t options = pack_options(spec);
  const ThreadCache::Memo& memo = cache.memo(options);
  if (memo.options != options || memo.alignment != spec.alignment) [[unlikely]] {
    cache.lock.leave();
    return allocate_slowly(spec);
  }
  CachedGroup& group = *memo.group;
  Bin& bin = group.bins[size_class(spec.bytes)];
  if (bin.head == nullptr) [[unlikely]] {
    cache.lock.leave();
    return allocate_slowly(spec);
  }
  PoolNode& node = *bin.pop();
  cache.latest = &node;
  const auto bytes = static_cast<std::int64_t>(node.inner.bytes);
  const std::int64_t live = cache.live_bytes.add(bytes);
  const std::int64_t group_live = group.live_bytes.add(bytes);
  cache.hits.add(1);
  hand_out(node, spec);
  const bool ready = live <= cache.height && group_live <= group.height && !spec.zero;
  cache.lock.leave();
  if (!ready) [[unlikely]]
    return finish_slowly(cache, group, node, spec);
  return live_block(node, spec);
}

Result<Block> CachingPool::finish_slowly(ThreadCache& cache, CachedGroup& group, PoolNode& node,
                                         const BlockSpec& spec) {
  note_height(cache, group, node.group);
  auto block = live_block(node, spec);
  if (spec.zero)
    if (auto zeroed = zero(node, spec); !zeroed) {
      release(*block, {});
      return zeroed.error();
    }
  return block;
}

void CachingPool::release(const Block& block, Timepoint last_use) noexcept {
  const Recent& slot = recent[id_ % kRecent];
  ThreadCache* const cache = slot.pool == id_ ? slot.cache : nullptr;
  PoolNode* node = cache != nullptr ? cache->latest : nullptr;
  if (node == nullptr || node->key.load(std::memory_order_relaxed) != block.key) node = nodes_.find(block.key);
  if (node == nullptr || node->key.load(std::memory_order_relaxed) != block.key || node->inner.handle != block.handle ||
      node->state.load(std::memory_order_relaxed) != NodeState::kLive) [[unlikely]]
    return refuse(block);
  if (cache == nullptr || last_use.bits != 0 || !cache->lock.enter()) [[unlikely]]
    return release_slowly(*node, last_use);
  CachedGroup* const group = cache->group(node->group);
  Bin* const bin = group == nullptr ? nullptr : &group->bins[node->size_class];
  const auto bytes = static_cast<std::int64_t>(node->inner.bytes);
  if (bin == nullptr || bin->count >= bin->most || cache->live_bytes.get() - bytes < cache->floor) [[unlikely]] {
    cache->lock.leave();
    return release_slowly(*node, last_use);
  }
  take_in(*node);
  bin->push(node);
  cache->live_bytes.add(-bytes);
  group->live_bytes.add(-bytes);
  cache->lock.leave();
}

void CachingPool::refuse(const Block& block) noexcept {
  if (block.key == 0 && block.bytes == 0) return;  // a block of no bytes
  refused_releases_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace berth
