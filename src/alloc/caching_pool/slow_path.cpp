#include <algorithm>
#include <bit>

#include "alloc/caching_pool/caching_pool.h"
#include "base/try.h"
#include "berth/memory/device.h"
#include "memory/check_alignment.h"
#include "memory/host_copy.h"
#include "memory/zero_block.h"

namespace berth::internal {
namespace {

// Quota is granted in steps of many blocks or this many bytes, so that threads request it rarely.
constexpr std::int64_t kQuotaStep = std::int64_t{4} << 20;

Error too_many_blocks() {
  return {Code::kOutOfMemory, Layer::kAllocator, "a pool keeps at most {} blocks; use larger ones and views",
          (1 << NodeTable::kIndexBits) - 1};
}

}  // namespace

CachingPoolImpl::~CachingPoolImpl() {
  leave_forks(*this);
  // No other thread can be here: a thread that ends holds a reference while it retires.
  give_up(0, nullptr);
  // Threads may keep pointers to their caches for longer, and a new pool may have the same address.
  for (const auto& cache : caches_) cache->close();
}

// A linear search: a program has few combinations of options and tag, and only the slow path comes here.
std::uint16_t CachingPoolImpl::group_number(const BlockSpec& spec) {
  const std::uint32_t options = pack_options(spec);
  const std::size_t alignment = std::max(spec.alignment, kLeastAlignment);
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i]->options == options && groups_[i]->alignment == alignment) return static_cast<std::uint16_t>(i);
  if (groups_.size() == 65535) throw std::bad_alloc();
  auto group = std::make_unique<SharedGroup>();
  group->alignment = alignment;
  group->options = options;
  group->tag = spec.tag;
  tag_peaks_.try_emplace(spec.tag.id(), 0);
  groups_.push_back(std::move(group));
  return static_cast<std::uint16_t>(groups_.size() - 1);
}

// The group of this thread, created on first use. Null without a cache or without memory; the caller then uses the
// shared group, which is slower but always exists.
CachedGroup* CachingPoolImpl::own_group(ThreadCache* cache, std::uint16_t number) noexcept {
  if (cache == nullptr) return nullptr;
  if (cache->group(number) == nullptr) try {
      if (cache->groups.size() <= number) cache->groups.resize(number + std::size_t{1});
      auto group = std::make_unique<CachedGroup>();
      group->cache = cache;
      group->options = groups_[number]->options;
      group->alignment = group->asked_alignment = groups_[number]->alignment;
      cache->groups[number] = std::move(group);
    } catch (...) {
      return nullptr;
    }
  return cache->group(number);
}

// Changes the number of live bytes by `bytes`, which may be negative.
void CachingPoolImpl::count(CachedGroup* group, std::uint16_t number, std::int64_t bytes) noexcept {
  if (group != nullptr)
    group->add_live(bytes);
  else
    groups_[number]->live_bytes.add(bytes);
  if (bytes > 0) raise_peaks(group, number);
}

// Live bytes are counted per thread, without synchronisation, so a sum must visit every cache. A counter may be
// negative on its own: blocks can be released by another thread than the one that allocated them.
std::int64_t CachingPoolImpl::live_of(const Name* tag) const noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (tag != nullptr && groups_[i]->tag != *tag) continue;
    sum += groups_[i]->live_bytes.get();
    for (const auto& cache : caches_)
      if (const CachedGroup* group = cache->group(i)) sum += group->live_bytes.get();
  }
  return sum;
}

// Records a new peak, and computes how many live bytes this thread can have before the next possible one.
void CachingPoolImpl::raise_peaks(CachedGroup* group, std::uint16_t number) noexcept {
  const std::int64_t live = live_of(nullptr);
  peak_ = std::max(peak_, live);
  const Name tag = groups_[number]->tag;
  const std::int64_t of_tag = live_of(&tag);
  std::int64_t& tag_peak = tag_peaks_.find(tag.id())->second;
  tag_peak = std::max(tag_peak, of_tag);
  if (group == nullptr) return;
  ThreadCache& cache = *group->cache;
  cache.ceiling = cache.live_bytes() + peak_ - live;
  // Until this thread alone adds the difference to the peak, there is no new peak for it to record, so the hot path
  // only compares with the ceiling.
  const std::int64_t tag_ceiling = cache.live_bytes(tag.id()) + tag_peak - of_tag;
  cache.for_each_group([&](CachedGroup& each, auto) {
    if (each.tag() == tag.id()) each.tag_ceiling = tag_ceiling;
  });
  cache.make_current(*group);
}

// A block of this class that any timeline, or the given one, may use now.
PoolNode* CachingPoolImpl::take_shared(CachedGroup* group, std::uint16_t number, std::size_t index,
                                       TimelineId timeline) noexcept {
  SharedGroup& shared = *groups_[number];
  // Pending blocks come first. They are the ones that a request on the same timeline can use at once, and that would
  // otherwise stay unused until their last use is reached.
  Bin& pending = shared.pending[index];
  for (PoolNode** at = &pending.head; *at != nullptr; at = &(*at)->next) {
    PoolNode* node = *at;
    const Timepoint last_use{node->last_use};
    const bool reached = is_reached(last_use);
    if (!(timeline != TimelineId::kNone && last_use.timeline() == timeline) && !reached) continue;
    *at = node->next;
    if constexpr (kDebugMemory || kAddressSanitizer) node->has_late_work = !reached;
    node->state = NodeState::kInUse;
    shared_cached_ -= static_cast<std::int64_t>(node->inner.bytes);
    return node;
  }
  Bin& idle = shared.idle[index];
  if (idle.head == nullptr) return nullptr;
  PoolNode* const node = idle.pop();
  shared_cached_ -= static_cast<std::int64_t>(node->inner.bytes);
  // Move a few more blocks to the thread, together with their quota, so that the next requests hit.
  const std::uint32_t batch = group != nullptr && index < own_classes_ ? batch_of(index) : 1;
  for (std::uint32_t i = 1; i < batch && idle.head != nullptr; ++i) {
    PoolNode* const next = idle.pop();
    const auto bytes = static_cast<std::int64_t>(next->inner.bytes);
    shared_cached_ -= bytes;
    quotas_ += bytes;
    group->add_quota(bytes);
    group->add_cached(bytes);
    next->home = group;
    group->bins[index].push(next);
  }
  return node;
}

Result<Block> CachingPoolImpl::allocate_slowly(const BlockSpec& asked, PoolNode* taken) {
  if (taken != nullptr) return finish_slowly(*taken, asked);
  BERTH_TRY(check_alignment(asked.alignment, Layer::kAllocator));
  if (asked.bytes == 0) return Block{.label = asked.label, .usage = asked.usage};
  // The thread's group or cache may only have been closed or missing; look in its own bin again.
  if (ThreadCache* const cache = find_cache(); cache != nullptr && cache->turn_to(pack_options(asked), asked.alignment))
    return allocate(asked);
  check_now_and_then();
  // Large blocks bypass the cache in their exact size: rounding them up would waste most.
  if (asked.bytes > largest_) return allocate_below(asked, asked.bytes, kUncached);
  const std::size_t index = size_class(asked.bytes);
  PoolNode* node = nullptr;
  Block block;
  try {
    const Lock lock(mutex_);
    const std::uint16_t number = group_number(asked);
    ThreadCache* const cache = own_cache();
    CachedGroup* const group = own_group(cache, number);
    if (group != nullptr) group->asked_alignment = asked.alignment;
    if (group != nullptr && group->bins[index].head != nullptr) {
      // The lock was closed by another thread, or the group is new to the table of this thread.
      node = group->bins[index].pop();
      group->add_cached(-static_cast<std::int64_t>(node->inner.bytes));
    } else {
      // Zeroing does not go through the queue of the timeline, so a block to be zeroed must be idle.
      node = take_shared(group, number, index, asked.zero ? TimelineId::kNone : asked.on);
    }
    if (node != nullptr) {
      ++(cache != nullptr ? cache->hits : shared_hits_);
      node->home = home_of(*node, group);
      count(group, number, static_cast<std::int64_t>(node->inner.bytes));
      block = live_block(*node, asked.bytes, hand_out(*node, asked)).value();
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory(OutOfMemory::Cause::kCapacity, *this, asked);
  }
  if (node == nullptr) {
    // Rounding up to a class may exceed the largest block of the device; request the largest block then.
    const std::size_t most = inner()->device().limits().max_block_bytes;
    const std::size_t rounded = class_bytes(index);
    return allocate_below(asked, most > 0 && asked.bytes <= most ? std::min(rounded, most) : rounded,
                          static_cast<std::uint16_t>(index));
  }
  if (asked.zero)
    if (auto zeroed = zero(*node, asked); !zeroed) {
      release(block, {});
      return zeroed.error();
    }
  return block;
}

// The rest of a hit that reached a new peak or must be zeroed.
Result<Block> CachingPoolImpl::finish_slowly(PoolNode& node, const BlockSpec& spec) {
  auto block = live_block(node, spec.bytes, node.load_tail());
  if (node.home->live_bytes.get() > node.home->height) {
    const Lock lock(mutex_);
    raise_peaks(node.home, node.group);
  }
  if (spec.zero)
    if (auto zeroed = zero(node, spec); !zeroed) {
      release(*block, {});
      return zeroed.error();
    }
  return block;
}

// Counts `bytes` as held before the layer below is called, so that two threads cannot exceed the budget together. If
// they do not fit, the cache is released first, because it costs nothing but time; the user's callback is called last.
Result<void> CachingPoolImpl::reserve(const BlockSpec& spec, std::size_t bytes) {
  const auto fits = [&] {
    const std::size_t held = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (options_.budget == 0 || held <= options_.budget) return true;
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  };
  if (fits()) return {};
  give_up(0, nullptr);
  if (fits()) return {};
  if (options_.on_pressure && options_.on_pressure(spec)) {
    give_up(0, nullptr);
    if (fits()) return {};
  }
  return out_of_memory(OutOfMemory::Cause::kBudget, *this, spec, options_.budget, bytes);
}

Result<Block> CachingPoolImpl::allocate_below(const BlockSpec& asked, std::size_t bytes, std::uint16_t size_class) {
  BERTH_TRY(reserve(asked, bytes));
  BlockSpec wanted = asked;
  wanted.bytes = bytes;
  wanted.alignment = std::max(asked.alignment, kLeastAlignment);
  // A cached block is reused by other timelines later, so it must not be tied to the timeline that requests it first.
  if (size_class != kUncached) wanted.on = TimelineId::kNone;
  const auto take = [&] {
    try {
      return inner()->allocate(wanted);
    } catch (...) {  // a callback of the user threw
      held_.fetch_sub(bytes, std::memory_order_relaxed);
      throw;
    }
  };
  auto given = take();
  if (!given && given.error().code() == Code::kOutOfMemory && give_up(0, nullptr) > 0)
    if (auto again = take()) given = std::move(again);  // otherwise report the first error
  if (!given) {
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    return given;
  }
  // The layer below may have returned more than was requested.
  held_.fetch_add(given->bytes - bytes, std::memory_order_relaxed);
  misses_.fetch_add(1, std::memory_order_relaxed);
  const auto undo = [&](Error error) {
    held_.fetch_sub(given->bytes, std::memory_order_relaxed);
    inner()->release(*given, {});
    return error;
  };
  try {
    const Lock lock(mutex_);
    PoolNode* const node = nodes_.take();
    if (node == nullptr) return undo(too_many_blocks());
    try {
      node->group = group_number(asked);
    } catch (...) {
      nodes_.give(node);
      throw;
    }
    node->inner = *given;
    node->size_class = size_class;
    node->state = NodeState::kInUse;
    // The release count in the upper half of the tail must survive the reuse of a node: it is what makes an old key
    // invalid.
    const Tail flags_and_usage = tail_of(*given) & 0xffff'0000;
    node->tail.store((node->load_tail() >> 32 << 32) | flags_and_usage | kNotLive, std::memory_order_relaxed);
    CachedGroup* const group = own_group(own_cache(), node->group);
    if (group != nullptr) group->asked_alignment = asked.alignment;
    node->home = home_of(*node, group);
    count(group, node->group, static_cast<std::int64_t>(given->bytes));
    return live_block(*node, asked.bytes, hand_out(*node, asked));
  } catch (const std::bad_alloc&) {
    return undo(out_of_memory(OutOfMemory::Cause::kCapacity, *this, asked));
  }
}

Result<void> CachingPoolImpl::zero(const PoolNode& node, const BlockSpec& spec) {
  if (is_markable(node.inner)) {
    fill_host(node.inner.host, 0, spec.bytes);
    return {};
  }
  return zero_block(inner()->device(), node.inner, spec.bytes);
}

// Moves half of a thread's blocks of one class to the shared cache, if there are at least this many.
void CachingPoolImpl::share_half(CachedGroup& group, std::uint16_t number, std::size_t index,
                                 std::int64_t at_least) noexcept {
  std::int64_t count = 0;
  for (const PoolNode* node = group.bins[index].head; node != nullptr; node = node->next) ++count;
  if (count < at_least) return;
  for (std::int64_t left = count / 2; left > 0; --left) {
    PoolNode* const node = group.bins[index].pop();
    const auto bytes = static_cast<std::int64_t>(node->inner.bytes);
    groups_[number]->idle[index].push(node);
    group.add_cached(-bytes);
    shared_cached_ += bytes;
    group.add_quota(-bytes);
    quotas_ -= bytes;
  }
}

// Collects nodes to be returned to the layer below. They are returned after the mutex is released (give_back), because
// the layer below may be a driver, or another pool.
void CachingPoolImpl::leave(PoolNode* node, PoolNode*& leaving) const noexcept {
  if (node->state != NodeState::kPending) node->last_use = 0;
  node->state = NodeState::kLeaving;
  node->next = leaving;
  leaving = node;
}

// Removes at least `wanted` bytes of blocks from the shared cache, largest first. Returns the bytes removed.
std::size_t CachingPoolImpl::take_from_shared(std::size_t wanted, const Name* tag, PoolNode*& leaving) noexcept {
  std::size_t taken = 0;
  for (unsigned index = kSizeClasses; index-- > 0 && taken < wanted;)
    for (const auto& group : groups_) {
      if (tag != nullptr && group->tag != *tag) continue;
      for (Bin* bin : {&group->idle[index], &group->pending[index]})
        while (bin->head != nullptr && taken < wanted) {
          PoolNode* const node = bin->pop();
          taken += node->inner.bytes;
          leave(node, leaving);
        }
    }
  shared_cached_ -= static_cast<std::int64_t>(taken);
  return taken;
}

// The same for the blocks of a thread. Requires: the cache of this thread, or a closed lock.
std::size_t CachingPoolImpl::take_from_cache(ThreadCache& cache, std::size_t wanted, const Name* tag,
                                             PoolNode*& leaving) noexcept {
  std::size_t taken = 0;
  for (std::size_t index = kSizeClasses; index-- > 0 && taken < wanted;)
    cache.for_each_group([&](CachedGroup& group, auto) {
      mutex_.assert_held();
      if (tag != nullptr && group.tag() != tag->id()) return;
      while (group.bins[index].head != nullptr && taken < wanted) {
        PoolNode* const node = group.bins[index].pop();
        const auto bytes = static_cast<std::int64_t>(node->inner.bytes);
        taken += node->inner.bytes;
        group.add_cached(-bytes);
        group.add_quota(-bytes);
        quotas_ -= bytes;
        leave(node, leaving);
      }
    });
  return taken;
}

// True if `bytes` more may be cached, after releasing other blocks if necessary.
bool CachingPoolImpl::make_room(std::size_t bytes, PoolNode*& leaving) noexcept {
  if (bytes > options_.max_cached_bytes) return false;
  const auto room = [&]() BERTH_REQUIRES(mutex_) {
    return static_cast<std::int64_t>(options_.max_cached_bytes) - quotas_ - shared_cached_;
  };
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (room() < wanted) take_from_shared(static_cast<std::size_t>(wanted - room()), nullptr, leaving);
  if (room() < wanted) {
    // Cached blocks and unused quota are taken from all threads, because some of them may be idle.
    with_all_caches([&](ThreadCache& each) BERTH_REQUIRES(mutex_) { share_all(each); });
    if (room() < wanted) take_from_shared(static_cast<std::size_t>(wanted - room()), nullptr, leaving);
  }
  return room() >= wanted;
}

void CachingPoolImpl::release_slowly(const Block& block, Timepoint last_use) noexcept {
  PoolNode* const found = nodes_.find(block.key);
  if (found == nullptr || !found->stands_for(block)) return refuse(block);
  PoolNode& node = *found;
  check_now_and_then();
  PoolNode* leaving = nullptr;
  {
    const Lock lock(mutex_);
    const auto bytes = static_cast<std::int64_t>(node.inner.bytes);
    CachedGroup* const group = own_group(own_cache(), node.group);
    count(group, node.group, -bytes);
    take_in(node, node.load_tail(), block, last_use);
    const std::size_t index = node.size_class;
    // A block that is still in use goes to the shared cache, where every release and request can check it; the bins of
    // a thread hold only idle blocks, so that a hit needs no check.
    const bool idle = is_reached(last_use);
    if (!idle) {
      node.state = NodeState::kPending;
      node.last_use = last_use.bits;
    }
    if (index == kUncached) {
      leave(&node, leaving);
    } else if (idle && group != nullptr && keep(*group, node)) {
      node.home = group;
      group->bins[index].push(&node);
      group->add_cached(bytes);
    } else if (make_room(node.inner.bytes, leaving)) {
      SharedGroup& shared = *groups_[node.group];
      (idle ? shared.idle : shared.pending)[index].push(&node);
      shared_cached_ += bytes;
    } else {
      leave(&node, leaving);
    }
  }
  give_back(leaving);
}

// True if the thread may cache one more block, after sharing some of the same class or obtaining more quota.
bool CachingPoolImpl::keep(CachedGroup& group, const PoolNode& node) noexcept {
  const std::size_t index = node.size_class;
  if (index >= own_classes_ || 2 * node.inner.bytes > options_.max_cached_bytes) return false;
  const auto bytes = static_cast<std::int64_t>(node.inner.bytes);
  const std::int64_t lacking = group.cached_bytes() + bytes - group.quota();
  if (lacking > 0) {
    // One thread may cache at most half of the pool's limit.
    const auto half = static_cast<std::int64_t>(options_.max_cached_bytes / 2);
    const bool may_grow = group.cache->quota() + lacking <= half;
    // A thread that releases more than it allocates (the consumer of a pipeline) would collect all blocks; sharing half
    // of them lets the producer find them again.
    share_half(group, node.group, index, may_grow ? many_of(index) : 2);
    const std::int64_t room = static_cast<std::int64_t>(options_.max_cached_bytes) - quotas_ - shared_cached_;
    const std::int64_t wanted = std::max(lacking, std::min(many_of(index) * bytes, kQuotaStep));
    const std::int64_t step = std::min({wanted, room, half - group.cache->quota()});
    if (step >= lacking) {
      group.add_quota(step);
      quotas_ += step;
    }
  }
  return group.cached_bytes() + bytes <= group.quota();
}

// The mutex is taken per node and only to recycle the node, never around the call of the layer below.
std::size_t CachingPoolImpl::give_back(PoolNode* list) noexcept {
  std::size_t bytes = 0;
  while (list != nullptr) {
    PoolNode* const node = list;
    list = node->next;
    bytes += node->inner.bytes;
    if (is_markable(node->inner)) asan_unpoison(node->inner.host, node->inner.bytes);
    inner()->release(node->inner, Timepoint{node->last_use});
    held_.fetch_sub(node->inner.bytes, std::memory_order_relaxed);
    const Lock lock(mutex_);
    nodes_.give(node);
  }
  return bytes;
}

std::size_t CachingPoolImpl::give_up(std::size_t keep_bytes, const Name* tag) noexcept {
  PoolNode* leaving = nullptr;
  {
    const Lock lock(mutex_);
    const std::size_t cached = cached_of(tag);
    if (cached > keep_bytes) {
      std::size_t wanted = cached - keep_bytes;
      // Shared blocks first: taking from threads stops them with a process-wide barrier.
      wanted -= std::min(wanted, take_from_shared(wanted, tag, leaving));
      if (wanted > 0)
        with_all_caches([&](ThreadCache& cache) BERTH_REQUIRES(mutex_) {
          if (wanted > 0) wanted -= std::min(wanted, take_from_cache(cache, wanted, tag, leaving));
        });
    }
  }
  return give_back(leaving);
}

std::size_t CachingPoolImpl::trim(std::size_t keep_bytes) noexcept {
  const std::size_t given = give_up(keep_bytes, nullptr);
  return std::max(given, inner()->trim(keep_bytes));
}

std::size_t CachingPoolImpl::trim_tag(Name tag) noexcept {
  return give_up(0, &tag);
}

// Moves all cached blocks and the quota of a thread to the shared cache.
void CachingPoolImpl::share_all(ThreadCache& cache) noexcept {
  cache.for_each_group([&](CachedGroup& group, std::uint16_t number) {
    mutex_.assert_held();
    for (std::size_t index = 0; index < own_classes_; ++index)
      while (group.bins[index].head != nullptr) groups_[number]->idle[index].push(group.bins[index].pop());
    shared_cached_ += group.cached_bytes();
    quotas_ -= group.quota();
    group.base = group.floor = group.live_bytes.get();
  });
}

// The cache object stays with the pool for the next new thread: it counts live bytes, and nodes refer to it as their
// home.
void CachingPoolImpl::retire(ThreadCache& cache) noexcept {
  const Lock lock(mutex_);
  vacate(cache);
}

void CachingPoolImpl::vacate(ThreadCache& cache) noexcept {
  share_all(cache);
  cache.current = &no_group;
  cache.ceiling = kNotKnown;
  cache.is_vacant = true;
}

// The lock is held from one of these functions to the other, which the analysis cannot follow.
void CachingPoolImpl::before_fork() noexcept BERTH_NO_THREAD_ANALYSIS {
  mutex_.lock();
  for (const auto& cache : caches_) cache->close();
  BiasedLock::barrier();
  for (const auto& cache : caches_) cache->await_owner();
}

void CachingPoolImpl::after_fork(bool in_child) noexcept BERTH_NO_THREAD_ANALYSIS {
  if (in_child) {
    const ThreadCache* const own = find_cache();
    for (const auto& cache : caches_)
      if (cache.get() != own && !cache->is_vacant) vacate(*cache);
  }
  for (const auto& cache : caches_) cache->open(this);
  mutex_.unlock();
}

}  // namespace berth::internal
