// The parts of the caching pool. A node stands for one block of the layer below, whether live or cached, and is
// named by Block::key. A group is one set of options and one tag; it has a bin for each size class. Each thread
// that uses a pool has a cache with bins of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "berth/block.h"
#include "core/biased_lock.h"
#include "core/size_class.h"

namespace berth {

enum class NodeState : std::uint8_t { kUnused, kLive, kCached, kLeaving };

struct alignas(64) PoolNode {
  Block inner{};  // as the layer below gave it
  PoolNode* next = nullptr;
  std::atomic<std::uint64_t> word{0};  // live: the bytes asked for; cached: the moment of the last use
  // What Block::key is while the node is live: its index, and above it how often it came back, so that an old key
  // is told from a new one. Atomic, because a thread may look at the key of a node that another thread returns.
  std::atomic<std::uint32_t> key{0};
  std::atomic<std::uint16_t> label{0};
  std::uint16_t group = 0;
  std::uint16_t size_class = 0;
  std::atomic<NodeState> state{NodeState::kUnused};
};
static_assert(sizeof(PoolNode) == 64);

inline constexpr std::uint16_t kUncached = kSizeClasses;  // the class of blocks that are never cached

// A number with one writer at a time and any number of readers.
class Counter {
 public:
  std::int64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void set(std::int64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::int64_t add(std::int64_t value) noexcept {
    const std::int64_t sum = get() + value;
    set(sum);
    return sum;
  }

 private:
  std::atomic<std::int64_t> value_{0};
};

// How many blocks of a class a thread keeps.
constexpr std::uint32_t most_kept(unsigned index) noexcept {
  constexpr unsigned kSmall = size_class(std::size_t{64} << 10), kMiddle = size_class(std::size_t{1} << 20);
  return index <= kSmall ? 64 : index <= kMiddle ? 16 : index < kUncached ? 8 : 0;
}

struct Bin {
  PoolNode* head = nullptr;
  std::uint32_t count = 0;
  std::uint32_t most = 0;  // a thread's bin: how many it keeps before it shares half of them

  void push(PoolNode* node) noexcept {
    node->next = head;
    head = node;
    ++count;
  }
  PoolNode* pop() noexcept {
    PoolNode* node = head;
    head = node->next;
    --count;
    return node;
  }
};

struct CachedGroup {
  Counter live_bytes;                        // of this thread alone; below zero where it releases what others allocated
  std::int64_t height = 0;                   // past this many live bytes the tag may be at a new peak
  std::array<Bin, kSizeClasses + 1> bins{};  // the last for kUncached: always empty, and full

  CachedGroup() noexcept {
    for (unsigned index = 0; index < bins.size(); ++index) bins[index].most = most_kept(index);
  }
};

// The blocks that one thread keeps. The thread works on it under `lock`, or under the pool's mutex; others
// under the pool's mutex and with the lock revoked.
//
// On the hot paths a byte that stops being live starts being cached and the other way round, so only the live
// bytes are counted there: cached = base - live, and "cached + n <= quota" is "live - n >= base - quota".
struct ThreadCache {
  BiasedLock lock;
  Counter live_bytes, hits;
  // What the thread was given last. It is often what comes back first, and looking here spares the processor the wait
  // from the block's bytes through the table to the node. Touched by the thread alone. The node may have come to stand
  // for another block since: only its key tells.
  PoolNode* latest = nullptr;
  std::int64_t height = 0;  // past this many live bytes the pool may be at a new peak
  std::int64_t floor = 0;   // base - quota
  std::int64_t base = 0;

  std::int64_t cached_bytes() const noexcept { return base - live_bytes.get(); }
  std::int64_t quota() const noexcept { return base - floor; }
  void add_cached(std::int64_t bytes) noexcept {
    base += bytes;
    floor += bytes;
  }
  void add_quota(std::int64_t bytes) noexcept { floor -= bytes; }
  // Live bytes that do not come from the cached ones.
  void add_live(std::int64_t bytes) noexcept {
    live_bytes.add(bytes);
    add_cached(bytes);
  }

  // What was asked for lately, and found to be legal.
  struct Memo {
    std::size_t alignment = 0;  // as asked; 0: none
    std::uint32_t options = 0;
    CachedGroup* group = nullptr;
  };
  std::array<Memo, 4> memos{};
  Memo& memo(std::uint32_t options) noexcept { return memos[(options ^ options >> 16) % 4]; }
  std::vector<std::unique_ptr<CachedGroup>> groups;  // by group number; null until used

  CachedGroup* group(std::size_t number) const noexcept {
    return number < groups.size() ? groups[number].get() : nullptr;
  }
};

struct SharedGroup {
  std::size_t alignment = 0;
  std::uint32_t options = 0;
  Name tag;
  Counter live_bytes;  // of threads that are gone
  std::array<Bin, kSizeClasses> idle{}, pending{};
};

// Requests below it share their blocks with it.
inline constexpr std::size_t kLeastAlignment = 64;

// Usage, host access and tag in one word, in the order in which the request has them: one load.
constexpr std::uint32_t pack_options(const BlockSpec& spec) noexcept {
  return static_cast<std::uint32_t>(spec.tag.id()) << 16 | static_cast<std::uint32_t>(spec.host) << 8 |
         static_cast<std::uint32_t>(spec.usage);
}

// How many blocks a thread takes from the shared ones at once.
constexpr std::uint32_t batch_of(unsigned index) noexcept {
  return class_bytes(index) <= (std::size_t{64} << 10) ? 16 : 1;
}

// All nodes of a pool. Chunks are never freed before the pool, so a key can be looked up without a lock.
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
    return node.key.load(std::memory_order_relaxed) & ((1u << kIndexBits) - 1);
  }
  static void make_key_old(PoolNode& node) noexcept {
    node.key.store(node.key.load(std::memory_order_relaxed) + (1u << kIndexBits), std::memory_order_relaxed);
  }

  // The calls below are made under the pool's mutex. take() gives null when there are 2^24 nodes, and throws
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
    node->key.store(made_++, std::memory_order_relaxed);
    return node;
  }
  void give(PoolNode* node) noexcept {
    node->state.store(NodeState::kUnused, std::memory_order_relaxed);
    node->next = free_;
    free_ = node;
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::uint32_t index = 1; index < made_; ++index) visit(*find(index));
  }

 private:
  std::unique_ptr<std::atomic<PoolNode*>[]> chunks_;
  PoolNode* free_ = nullptr;
  std::uint32_t made_ = 0;
};

}  // namespace berth
