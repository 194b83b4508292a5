#include <algorithm>
#include <bit>

#include "berth/device.h"
#include "core/caching_pool.h"
#include "core/host_copy.h"
#include "core/try.h"

namespace berth {
namespace {

// Quota is granted in steps, so that a thread asks for it rarely.
constexpr std::int64_t kQuotaStep = std::int64_t{4} << 20;

Error too_many_blocks() {
  return {Code::kOutOfMemory, Layer::kAllocator, "a pool keeps at most {} blocks; use larger ones and views",
          (1 << NodeTable::kIndexBits) - 1};
}

}  // namespace

CachingPool::~CachingPool() {
  // Nobody else can be here: threads that end hold a reference while they retire.
  give_up(0, nullptr);
}

std::uint16_t CachingPool::group_number(const BlockSpec& spec) {
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

CachedGroup* CachingPool::own_group(ThreadCache* cache, std::uint16_t number) noexcept {
  if (cache == nullptr) return nullptr;
  if (cache->group(number) == nullptr) try {
      if (cache->groups.size() <= number) cache->groups.resize(number + std::size_t{1});
      cache->groups[number] = std::make_unique<CachedGroup>();
    } catch (...) {
      return nullptr;
    }
  return cache->group(number);
}

// Adds to, or with a negative number takes from, what is live.
void CachingPool::count(ThreadCache* cache, CachedGroup* group, std::uint16_t number, std::int64_t bytes) noexcept {
  if (cache != nullptr && group != nullptr) {
    cache->add_live(bytes);
    group->live_bytes.add(bytes);
  } else {
    groups_[number]->live_bytes.add(bytes);
  }
  if (bytes > 0) raise_peaks(cache, group, number);
}

std::int64_t CachingPool::live_of(const Name* tag) const noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (tag != nullptr && groups_[i]->tag != *tag) continue;
    sum += groups_[i]->live_bytes.get();
    for (const auto& cache : caches_)
      if (const CachedGroup* group = cache->group(i)) sum += group->live_bytes.get();
  }
  return sum;
}

// Notes a new peak, and how far this thread can go before there can be another one.
void CachingPool::raise_peaks(ThreadCache* cache, CachedGroup* group, std::uint16_t number) noexcept {
  const std::int64_t live = live_of(nullptr);
  peak_ = std::max(peak_, live);
  const Name tag = groups_[number]->tag;
  const std::int64_t of_tag = live_of(&tag);
  std::int64_t& tag_peak = tag_peaks_.find(tag.id())->second;
  tag_peak = std::max(tag_peak, of_tag);
  if (cache == nullptr || group == nullptr) return;
  cache->height = cache->live_bytes.get() + peak_ - live;
  group->height = group->live_bytes.get() + tag_peak - of_tag;
}

void CachingPool::note_height(ThreadCache& cache, CachedGroup& group, std::uint16_t number) noexcept {
  const Lock lock(mutex_);
  raise_peaks(&cache, &group, number);
}

// A block of this class that anybody, or the given line, may use now.
PoolNode* CachingPool::take_shared(ThreadCache* cache, CachedGroup* group, std::uint16_t number, unsigned size_class,
                                   std::uint16_t line) noexcept {
  SharedGroup& shared = *groups_[number];
  Bin& pending = shared.pending[size_class];
  for (PoolNode** at = &pending.head; *at != nullptr; at = &(*at)->next) {
    PoolNode* node = *at;
    const Timepoint last_use{node->word.load(std::memory_order_relaxed)};
    if (!(line != 0 && last_use.line() == line) && !is_reached(last_use)) continue;
    *at = node->next;
    --pending.count;
    shared_cached_ -= static_cast<std::int64_t>(node->inner.bytes);
    return node;
  }
  Bin& idle = shared.idle[size_class];
  if (idle.head == nullptr) return nullptr;
  PoolNode* const node = idle.pop();
  shared_cached_ -= static_cast<std::int64_t>(node->inner.bytes);
  // Take a few more along, with the right to keep them.
  for (std::uint32_t i = 1; group != nullptr && i < batch_of(size_class) && idle.head != nullptr; ++i) {
    PoolNode* const next = idle.pop();
    const auto bytes = static_cast<std::int64_t>(next->inner.bytes);
    shared_cached_ -= bytes;
    quotas_ += bytes;
    cache->add_quota(bytes);
    cache->add_cached(bytes);
    group->bins[size_class].push(next);
  }
  return node;
}

Result<Block> CachingPool::allocate_slowly(const BlockSpec& asked) {
  if (!std::has_single_bit(asked.alignment))
    return Error(Code::kInvalidArgument, Layer::kAllocator, "an alignment of {} is not a power of two",
                 asked.alignment);
  if (asked.bytes == 0) return Block{.label = asked.label.id(), .usage = asked.usage};
  check_now_and_then();
  if (asked.bytes > largest_) return allocate_below(asked, asked.bytes, kUncached);
  const unsigned index = size_class(asked.bytes);
  PoolNode* node = nullptr;
  Block block;
  try {
    const Lock lock(mutex_);
    const std::uint16_t number = group_number(asked);
    ThreadCache* const cache = own_cache();
    CachedGroup* const group = own_group(cache, number);
    if (group != nullptr) cache->memo(pack_options(asked)) = {asked.alignment, pack_options(asked), group};
    if (group != nullptr && group->bins[index].head != nullptr) {
      // The options were not in the memo, and now they are.
      node = group->bins[index].pop();
      cache->add_cached(-static_cast<std::int64_t>(node->inner.bytes));
    } else {
      node = take_shared(cache, group, number, index, asked.on);
    }
    if (node != nullptr) {
      if (cache != nullptr)
        cache->hits.add(1);
      else
        ++retired_hits_;
      count(cache, group, number, static_cast<std::int64_t>(node->inner.bytes));
      hand_out(*node, asked);
      block = live_block(*node, asked).value();
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory(OutOfMemory::Cause::kCapacity, *this, asked);
  }
  if (node == nullptr) {
    // A device with a limit gives its largest block for the sizes that a class would round past it.
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

Result<void> CachingPool::reserve(const BlockSpec& spec, std::size_t bytes) {
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

Result<Block> CachingPool::allocate_below(const BlockSpec& asked, std::size_t bytes, std::uint16_t size_class) {
  BERTH_TRY(reserve(asked, bytes));
  BlockSpec wanted = asked;
  wanted.bytes = bytes;
  wanted.alignment = std::max(asked.alignment, kLeastAlignment);
  // A cached block serves other lines later, so it may not be tied to the line that asks for it first.
  if (size_class != kUncached) wanted.on = 0;
  auto given = inner()->allocate(wanted);
  if (!given && given.error().code() == Code::kOutOfMemory && give_up(0, nullptr) > 0)
    if (auto again = inner()->allocate(wanted)) given = std::move(again);  // else the first error is the one to tell
  if (!given) {
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    return given;
  }
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
    ThreadCache* const cache = own_cache();
    count(cache, own_group(cache, node->group), node->group, static_cast<std::int64_t>(given->bytes));
    hand_out(*node, asked);
    return live_block(*node, asked);
  } catch (const std::bad_alloc&) {
    return undo(out_of_memory(OutOfMemory::Cause::kCapacity, *this, asked));
  }
}

Result<void> CachingPool::zero(const PoolNode& node, const BlockSpec& spec) {
  if (is_markable(node.inner)) {
    fill_host(node.inner.host, 0, spec.bytes);
    return {};
  }
  Device& device = inner()->device();
  BERTH_TRY_ASSIGN(Queue* const queue, device.default_queue());
  BERTH_TRY(queue->fill({.block = node.inner, .offset = 0, .bytes = spec.bytes, .device = &device}, 0));
  return queue->finish();
}

// Moves half of a thread's blocks of one class to where all threads find them.
void CachingPool::share_half(ThreadCache& cache, Bin& bin, std::uint16_t number, unsigned size_class) noexcept {
  for (std::uint32_t left = bin.count / 2; left > 0; --left) {
    PoolNode* const node = bin.pop();
    const auto bytes = static_cast<std::int64_t>(node->inner.bytes);
    groups_[number]->idle[size_class].push(node);
    cache.add_cached(-bytes);
    cache.add_quota(-bytes);
    quotas_ -= bytes;
    shared_cached_ += bytes;
  }
}

void CachingPool::leave(PoolNode* node, PoolNode*& leaving) const noexcept {
  node->state.store(NodeState::kLeaving, std::memory_order_relaxed);
  node->next = leaving;
  leaving = node;
}

// Takes at least `wanted` bytes of shared cached blocks out, the largest first. Returns how many.
std::size_t CachingPool::take_from_shared(std::size_t wanted, const Name* tag, PoolNode*& leaving) noexcept {
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

// The same for a thread's own blocks. Requires: this thread's cache, or its lock revoked.
std::size_t CachingPool::take_from_cache(ThreadCache& cache, std::size_t wanted, const Name* tag,
                                         PoolNode*& leaving) noexcept {
  std::size_t taken = 0;
  for (unsigned index = kSizeClasses; index-- > 0 && taken < wanted;)
    for (std::size_t number = 0; number < cache.groups.size(); ++number) {
      CachedGroup* const group = cache.group(number);
      if (group == nullptr || (tag != nullptr && groups_[number]->tag != *tag)) continue;
      while (group->bins[index].head != nullptr && taken < wanted) {
        PoolNode* const node = group->bins[index].pop();
        taken += node->inner.bytes;
        leave(node, leaving);
      }
    }
  cache.add_cached(-static_cast<std::int64_t>(taken));
  cache.add_quota(-static_cast<std::int64_t>(taken));
  quotas_ -= static_cast<std::int64_t>(taken);
  return taken;
}

// Calls `visit` with every thread's cache while its thread cannot work on it.
template <class Visit>
void CachingPool::with_all_caches(const Visit& visit) const noexcept {
  for (const auto& cache : caches_) cache->lock.revoke();
  BiasedLock::barrier();
  for (const auto& cache : caches_) {
    cache->lock.await_owner();
    visit(*cache);
  }
  for (const auto& cache : caches_) cache->lock.give_back();
}

// Whether `bytes` more may be cached, after pushing other blocks out if need be.
bool CachingPool::make_room(std::size_t bytes, PoolNode*& leaving) noexcept {
  if (bytes > options_.max_cached_bytes) return false;
  const auto room = [&] { return static_cast<std::int64_t>(options_.max_cached_bytes) - quotas_ - shared_cached_; };
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (room() < wanted) take_from_shared(static_cast<std::size_t>(wanted - room()), nullptr, leaving);
  if (room() < wanted) {
    // What threads keep, and what they may keep and do not, is taken from all of them: some may be idle.
    with_all_caches([&](ThreadCache& each) { share_all(each); });
    if (room() < wanted) take_from_shared(static_cast<std::size_t>(wanted - room()), nullptr, leaving);
  }
  return room() >= wanted;
}

void CachingPool::release_slowly(PoolNode& node, Timepoint last_use) noexcept {
  check_now_and_then();
  PoolNode* leaving = nullptr;
  {
    const Lock lock(mutex_);
    const auto bytes = static_cast<std::int64_t>(node.inner.bytes);
    ThreadCache* const cache = own_cache();
    CachedGroup* const group = own_group(cache, node.group);
    count(cache, group, node.group, -bytes);
    const bool idle = is_reached(last_use);
    take_in(node);
    if (!idle) node.word.store(last_use.bits, std::memory_order_relaxed);
    SharedGroup& shared = *groups_[node.group];
    if (node.size_class == kUncached) {
      leave(&node, leaving);
    } else if (idle && group != nullptr && 2 * node.inner.bytes <= options_.max_cached_bytes) {
      Bin& bin = group->bins[node.size_class];
      if (bin.count >= bin.most) share_half(*cache, bin, node.group, node.size_class);
      const std::int64_t lacking = cache->cached_bytes() + bytes - cache->quota();
      if (lacking > 0) {
        // One thread keeps at most half of what the pool may.
        const auto half = static_cast<std::int64_t>(options_.max_cached_bytes / 2);
        const bool may_grow = cache->quota() + lacking <= half;
        if (!may_grow) share_half(*cache, bin, node.group, node.size_class);
        const std::int64_t room = static_cast<std::int64_t>(options_.max_cached_bytes) - quotas_ - shared_cached_;
        const std::int64_t step = std::min({std::max(lacking, kQuotaStep), room, half - cache->quota()});
        if (step >= lacking) {
          cache->add_quota(step);
          quotas_ += step;
        }
      }
      if (cache->cached_bytes() + bytes <= cache->quota()) {
        bin.push(&node);
        cache->add_cached(bytes);
      } else if (make_room(node.inner.bytes, leaving)) {
        shared.idle[node.size_class].push(&node);
        shared_cached_ += bytes;
      } else {
        leave(&node, leaving);
      }
    } else if (make_room(node.inner.bytes, leaving)) {
      (idle ? shared.idle : shared.pending)[node.size_class].push(&node);
      shared_cached_ += bytes;
    } else {
      leave(&node, leaving);
    }
  }
  give_back(leaving);
}

std::size_t CachingPool::give_back(PoolNode* list) noexcept {
  std::size_t bytes = 0;
  while (list != nullptr) {
    PoolNode* const node = list;
    list = node->next;
    bytes += node->inner.bytes;
    if (is_markable(node->inner)) asan_unpoison(node->inner.host, node->inner.bytes);
    inner()->release(node->inner, Timepoint{node->word.load(std::memory_order_relaxed)});
    held_.fetch_sub(node->inner.bytes, std::memory_order_relaxed);
    const Lock lock(mutex_);
    nodes_.give(node);
  }
  return bytes;
}

std::size_t CachingPool::give_up(std::size_t keep_bytes, const Name* tag) noexcept {
  PoolNode* leaving = nullptr;
  {
    const Lock lock(mutex_);
    const std::size_t cached = cached_of(tag);
    if (cached > keep_bytes) {
      std::size_t wanted = cached - keep_bytes;
      wanted -= std::min(wanted, take_from_shared(wanted, tag, leaving));
      if (wanted > 0)
        with_all_caches([&](ThreadCache& cache) {
          if (wanted > 0) wanted -= std::min(wanted, take_from_cache(cache, wanted, tag, leaving));
        });
    }
  }
  return give_back(leaving);
}

std::size_t CachingPool::trim(std::size_t keep_bytes) noexcept {
  const std::size_t given = give_up(keep_bytes, nullptr);
  return std::max(given, inner()->trim(keep_bytes));
}

std::size_t CachingPool::trim_tag(Name tag) noexcept {
  return give_up(0, &tag);
}

// Moves all that a thread keeps, and its quota, to where all threads find it.
void CachingPool::share_all(ThreadCache& cache) noexcept {
  for (std::size_t number = 0; number < cache.groups.size(); ++number)
    if (CachedGroup* const group = cache.group(number))
      for (unsigned index = 0; index < kSizeClasses; ++index)
        while (group->bins[index].head != nullptr) groups_[number]->idle[index].push(group->bins[index].pop());
  shared_cached_ += cache.cached_bytes();
  quotas_ -= cache.quota();
  cache.base = cache.floor = cache.live_bytes.get();
}

void CachingPool::retire(const std::shared_ptr<ThreadCache>& cache) noexcept {
  const Lock lock(mutex_);
  share_all(*cache);
  for (std::size_t number = 0; number < cache->groups.size(); ++number)
    if (const CachedGroup* group = cache->group(number)) groups_[number]->live_bytes.add(group->live_bytes.get());
  retired_hits_ += static_cast<std::uint64_t>(cache->hits.get());
  std::erase(caches_, cache);
}

}  // namespace berth
