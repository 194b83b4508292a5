// The parts of the caching pool. A node represents one block of the layer below, live or cached; Block::key identifies
// it. A group is one combination of options and tag, and has one bin per size class. Each thread that uses a pool has a
// cache with its own groups and bins.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "alloc/caching_pool/biased_lock.h"
#include "alloc/caching_pool/size_class.h"
#include "berth/memory/block.h"

namespace berth::internal {

struct CachedGroup;
struct ThreadCache;

// The last eight bytes of a Block as one word. From the lowest bit: label, flags, usage, key. The key of a pool block
// is the index of its node, and above it a count of its releases, which distinguishes an old key from the current one.
using Tail = std::uint64_t;
inline constexpr Tail kLabelBits = 0xffff;
inline constexpr Tail kOnceMore = Tail{1} << 56;
// A flag that no block has: the node represents no live block.
inline constexpr Tail kNotLive = Tail{0x80} << 16;

inline Tail tail_of(const Block& block) noexcept {
  static_assert(std::endian::native == std::endian::little && offsetof(Block, label) == 24 &&
                offsetof(Block, flags) == 26 && offsetof(Block, usage) == 27 && offsetof(Block, key) == 28);
  Tail tail;
  std::memcpy(&tail, &block.label, sizeof tail);
  return tail;
}

enum class NodeState : std::uint8_t { kUnused, kInUse, kPending, kLeaving };

struct alignas(64) PoolNode {
  Block inner{};  // as returned by the layer below
  PoolNode* next = nullptr;
  // If live: the tail of the user's block. Otherwise: the tail of the next user's block, except for its label, plus
  // kNotLive. Atomic, because a thread may read a node that another thread is releasing.
  std::atomic<Tail> tail{kNotLive};
  union {
    CachedGroup* home = nullptr;  // in use: its last group, to which it usually returns
    std::uint64_t last_use;       // pending or leaving: Timepoint::bits
  };
  std::uint16_t group = 0;
  std::uint16_t size_class = 0;
  NodeState state = NodeState::kUnused;  // changed under the pool's mutex
  bool has_late_work = false;  // debug builds: handed out while work of its last user may still write to all of it

  Tail load_tail() const noexcept { return tail.load(std::memory_order_relaxed); }
  bool is_live() const noexcept { return (load_tail() & kNotLive) == 0; }
  bool is_cached() const noexcept { return !is_live() && (state == NodeState::kInUse || state == NodeState::kPending); }
  bool stands_for(const Block& block) const noexcept {
    return load_tail() == tail_of(block) && inner.handle == block.handle;
  }
};
static_assert(sizeof(PoolNode) == 64);

inline constexpr std::uint16_t kUncached = kSizeClasses;  // the class of blocks that are never cached

// A number with one writer at a time and any number of readers.
class Counter {
 public:
  std::int64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void set(std::int64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t value) noexcept { set(get() + value); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// A list of cached blocks of one group and class.
struct Bin {
  PoolNode* head = nullptr;

  void push(PoolNode* node) noexcept {
    node->next = head;
    head = node;
  }
  PoolNode* pop() noexcept {
    PoolNode* const node = head;
    head = node->next;
    return node;
  }
};

inline constexpr std::int64_t kNotKnown = std::numeric_limits<std::int64_t>::min() / 2;

// The part of a group that belongs to one thread: its cached blocks, and the number of its live bytes.
//
// On the hot paths, bytes only change between live and cached, so only the live bytes are counted there: cached = base
// - live, and "cached + n <= quota" is "live - n >= base - quota".
struct CachedGroup {
  ThreadCache* cache = nullptr;
  std::size_t asked_alignment = 0;     // of the last valid request
  std::uint32_t options = 0xffffffff;  // as packed below; no request has these
  Counter live_bytes;                  // of this thread; negative if it releases blocks of other threads
  std::int64_t height = 0;             // above this many live bytes, the pool or the tag may reach a new peak
  std::int64_t floor = 0;              // base - quota
  std::int64_t base = 0;
  // The number of live bytes of the tag that the thread can have before a new peak of the tag; small while unknown.
  std::int64_t tag_ceiling = kNotKnown;
  std::size_t alignment = 0;
  std::array<Bin, kAllClasses> bins{};

  std::uint16_t tag() const noexcept { return static_cast<std::uint16_t>(options >> 16); }
  std::int64_t cached_bytes() const noexcept { return base - live_bytes.get(); }
  std::int64_t quota() const noexcept { return base - floor; }
  void add_cached(std::int64_t bytes) noexcept {
    base += bytes;
    floor += bytes;
  }
  void add_quota(std::int64_t bytes) noexcept { floor -= bytes; }
  // Changes the live bytes without changing the cached bytes.
  void add_live(std::int64_t bytes) noexcept {
    live_bytes.add(bytes);
    add_cached(bytes);
  }
};

// Stands in for a missing group, so that the hot paths need no null check. It caches nothing, because it has no quota.
inline constinit CachedGroup no_group;
inline constinit PoolNode no_node;

// Requests with a smaller alignment share their blocks with it.
inline constexpr std::size_t kLeastAlignment = 64;

// The cache of one thread. The thread uses it while it holds the lock or the pool's mutex; other threads use it with
// the pool's mutex held and the lock closed.
struct ThreadCache : BiasedLock {
  // The node that the thread allocated last. It is often the first to be released, and finding it here avoids the
  // dependent loads from the block through the table to the node. Accessed only by the thread. The node may represent
  // another block by now; its tail tells.
  PoolNode* latest = &no_node;
  // The group of the last request. The hot path allocates only from this one, so only its peak limit must be exact, and
  // one number serves for pool and tag: the live bytes of other groups can only shrink meanwhile.
  CachedGroup* current = &no_group;
  std::uint64_t hits = 0;
  std::int64_t ceiling = kNotKnown;  // live bytes that the thread can have before a new peak of the pool
  bool is_vacant = false;            // its thread has ended; a new thread may take it over
  std::vector<std::unique_ptr<CachedGroup>> groups;  // by group number; null until used

  CachedGroup* group(std::size_t number) const noexcept {
    return number < groups.size() ? groups[number].get() : nullptr;
  }
  template <class Visit>
  void for_each_group(const Visit& visit) const {
    for (std::size_t number = 0; number < groups.size(); ++number)
      if (groups[number] != nullptr) visit(*groups[number], static_cast<std::uint16_t>(number));
  }
  std::int64_t live_bytes() const noexcept {
    std::int64_t sum = 0;
    for_each_group([&](const CachedGroup& each, auto) { sum += each.live_bytes.get(); });
    return sum;
  }
  std::int64_t live_bytes(std::uint16_t tag) const noexcept {
    std::int64_t sum = 0;
    for_each_group([&](const CachedGroup& each, auto) { sum += each.tag() == tag ? each.live_bytes.get() : 0; });
    return sum;
  }
  std::int64_t quota() const noexcept {
    std::int64_t sum = 0;
    for_each_group([&](const CachedGroup& each, auto) { sum += each.quota(); });
    return sum;
  }

  // O(groups of the thread); so is the next function.
  void make_current(CachedGroup& group) noexcept {
    current = &group;
    group.height =
        group.live_bytes.get() + std::min(ceiling - live_bytes(), group.tag_ceiling - live_bytes(group.tag()));
  }
  // Makes the group for such requests the current one. False if it already is, or if there is none.
  bool turn_to(std::uint32_t options, std::size_t alignment) noexcept {
    if (!std::has_single_bit(alignment)) return false;
    for (const auto& each : groups) {
      if (each == nullptr || each->options != options || each->alignment != std::max(alignment, kLeastAlignment))
        continue;
      if (each.get() == current && each->asked_alignment == alignment) return false;
      each->asked_alignment = alignment;
      make_current(*each);
      return true;
    }
    return false;
  }
};

struct SharedGroup {
  std::size_t alignment = 0;
  std::uint32_t options = 0;
  Name tag;
  Counter live_bytes;  // of threads without a cache
  std::array<Bin, kSizeClasses> idle{}, pending{};
};

// Usage, host access and tag in one word, in the order of BlockSpec, so that it is one load.
constexpr std::uint32_t pack_options(const BlockSpec& spec) noexcept {
  return static_cast<std::uint32_t>(spec.tag.id()) << 16 | static_cast<std::uint32_t>(spec.host) << 8 |
         static_cast<std::uint32_t>(spec.usage);
}

// A thread that lacks quota shares half of its blocks of a class if it has at least this many, and otherwise requests
// more quota.
constexpr std::int64_t many_of(std::size_t index) noexcept {
  constexpr std::size_t kSmall = size_class(std::size_t{64} << 10), kMiddle = size_class(std::size_t{1} << 20);
  return index <= kSmall ? 64 : index <= kMiddle ? 16 : 8;
}

// The number of blocks that a thread takes from the shared cache at once.
constexpr std::uint32_t batch_of(std::size_t index) noexcept {
  return class_bytes(index) <= (std::size_t{64} << 10) ? 16 : 1;
}

// All nodes of a pool. Chunks live as long as the pool, so a key can be looked up without a lock.
class NodeTable {
 public:
  static constexpr std::uint32_t kIndexBits = 24;
  static constexpr std::uint32_t kChunkBits = 12;

  NodeTable() : chunks_(std::make_unique<std::atomic<PoolNode*>[]>(std::size_t{1} << (kIndexBits - kChunkBits))) {}
  ~NodeTable() {
    for (std::uint32_t i = 0; i << kChunkBits < made_; ++i) delete[] chunks_[i].load(std::memory_order_relaxed);
  }
  NodeTable(const NodeTable&) = delete;
  NodeTable& operator=(const NodeTable&) = delete;

  // Null for a key that no node ever had.
  PoolNode* find(std::uint32_t key) const noexcept {
    const std::uint32_t index = key & ((1u << kIndexBits) - 1);
    PoolNode* chunk = chunks_[index >> kChunkBits].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + (index & ((1u << kChunkBits) - 1));
  }

  static std::uint32_t index(const PoolNode& node) noexcept {
    return static_cast<std::uint32_t>(node.load_tail() >> 32) & ((1u << kIndexBits) - 1);
  }

  // The functions below require the pool's mutex. take() returns null if there are 2^24 nodes, and throws
  // std::bad_alloc.
  PoolNode* take() {
    if (PoolNode* node = free_) {
      free_ = node->next;
      return node;
    }
    if (made_ == 0) made_ = 1;  // key 0 names no node
    if (made_ >> kIndexBits != 0) return nullptr;
    auto& chunk = chunks_[made_ >> kChunkBits];
    PoolNode* nodes = chunk.load(std::memory_order_relaxed);
    if (nodes == nullptr) {
      nodes = new PoolNode[std::size_t{1} << kChunkBits];
      chunk.store(nodes, std::memory_order_release);
    }
    PoolNode* node = nodes + (made_ & ((1u << kChunkBits) - 1));
    node->tail.store(Tail{made_++} << 32 | kNotLive, std::memory_order_relaxed);
    return node;
  }
  void give(PoolNode* node) noexcept {
    node->state = NodeState::kUnused;
    node->next = free_;
    free_ = node;
  }
  std::int64_t size() const noexcept { return made_; }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::uint32_t index = 1; index < made_; ++index) visit(*find(index));
  }

 private:
  std::unique_ptr<std::atomic<PoolNode*>[]> chunks_;
  PoolNode* free_ = nullptr;
  std::uint32_t made_ = 0;
};

}  // namespace berth::internal
