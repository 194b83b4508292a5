#include "berth/pool.h"

#include <algorithm>
#include <bit>

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

ThreadCache* CachingPool::this_thread() noexcept {
  Recent& slot = recent[id_ % kRecent];
  if (slot.pool == id_) [[likely]]
    return slot.cache;
  if (thread_ends) return nullptr;
  for (const auto& entry : caches_of_thread.entries)
    if (entry.id == id_) {
      slot = {id_, entry.cache.get()};
      return slot.cache;
    }
  return nullptr;
}

ThreadCache* CachingPool::own_cache() noexcept {
  if (ThreadCache* cache = this_thread()) return cache;
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
  return this_thread();
}

Result<Block> CachingPool::allocate(const BlockSpec& spec) {
  ThreadCache* const cache = this_thread();
  // Zero bytes wrap around and go the slow way.
  if (spec.bytes - 1 >= largest_ || !std::has_single_bit(spec.alignment) || cache == nullptr || !cache->lock.enter())
      [[unlikely]]
    return allocate_slowly(spec);
  const std::uint32_t options = pack_options(spec);
  const ThreadCache::Memo& memo = cache->memos[(spec.tag.id() ^ static_cast<unsigned>(spec.usage)) % 4];
  if (memo.options != options || memo.alignment != std::max(spec.alignment, kLeastAlignment) || memo.group == nullptr)
      [[unlikely]] {
    cache->lock.leave();
    return allocate_slowly(spec);
  }
  CachedGroup& group = *memo.group;
  Bin& bin = group.bins[size_class(spec.bytes)];
  if (bin.head == nullptr) [[unlikely]] {
    cache->lock.leave();
    return allocate_slowly(spec);
  }
  PoolNode& node = *bin.pop();
  const auto bytes = static_cast<std::int64_t>(node.inner.bytes);
  cache->cached_bytes.add(-bytes);
  cache->live_bytes.add(bytes);
  cache->hits.add(1);
  group.live_bytes.add(bytes);
  group.live_count.add(1);
  const Block block = hand_out(node, spec);
  const bool higher = cache->live_bytes.get() > cache->height || group.live_bytes.get() > group.height;
  cache->lock.leave();
  if (higher) [[unlikely]]
    note_height(*cache, group, node.group);
  if (spec.zero) [[unlikely]]
    if (auto zeroed = zero(node, spec); !zeroed) {
      release(block, {});
      return zeroed.error();
    }
  return block;
}

void CachingPool::release(const Block& block, Timepoint last_use) noexcept {
  if (block.key == 0 && block.bytes == 0) return;
  PoolNode* const node = nodes_.find(block.key);
  if (node == nullptr || node->state.load(std::memory_order_relaxed) != NodeState::kLive ||
      NodeTable::key(*node) != block.key || node->inner.handle != block.handle) [[unlikely]] {
    refused_releases_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ThreadCache* const cache = this_thread();
  if (cache != nullptr && (last_use.bits == 0 || is_reached(last_use)) && cache->lock.enter()) [[likely]] {
    CachedGroup* const group = cache->group(node->group);
    const auto bytes = static_cast<std::int64_t>(node->inner.bytes);
    if (group != nullptr && node->size_class != kUncached && cache->cached_bytes.get() + bytes <= cache->quota)
        [[likely]] {
      Bin& bin = group->bins[node->size_class];
      if (bin.count < most_kept(node->size_class)) [[likely]] {
        take_in(*node);
        bin.push(node);
        cache->cached_bytes.add(bytes);
        cache->live_bytes.add(-bytes);
        group->live_bytes.add(-bytes);
        group->live_count.add(-1);
        cache->lock.leave();
        return;
      }
    }
    cache->lock.leave();
  }
  release_slowly(*node, last_use);
}

}  // namespace berth
