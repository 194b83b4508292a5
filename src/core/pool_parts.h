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
  std::uint32_t index = 0;
  std::atomic<std::uint16_t> label{0};
  std::uint16_t group = 0;
  std::uint16_t size_class = 0;
  std::atomic<NodeState> state{NodeState::kUnused};
  std::uint8_t generation = 0;  // counts hand-outs, so that an old key is told from a new one
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

struct Bin {
  PoolNode* head = nullptr;
  std::uint32_t count = 0;

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
  Counter live_bytes, live_count;  // of this thread alone; below zero where it releases what others allocated
  std::int64_t height = 0;         // past this many live bytes the group may be at a new peak
  std::array<Bin, kSizeClasses> bins{};
};

// The blocks that one thread keeps. The thread works on it under `lock`, or under the pool's mutex; others
// under the pool's mutex and with the lock revoked.
struct ThreadCache {
  BiasedLock lock;
  Counter cached_bytes, live_bytes, hits;
  std::int64_t height = 0;
  std::int64_t quota = 0;  // what cached_bytes may grow to
  // The options asked for lately.
  struct Memo {
    std::size_t alignment = 0;
    std::uint32_t options = 0;
    CachedGroup* group = nullptr;
  };
  std::array<Memo, 4> memos{};
  std::vector<std::unique_ptr<CachedGroup>> groups;  // by group number; null until used

  CachedGroup* group(std::size_t number) const noexcept {
    return number < groups.size() ? groups[number].get() : nullptr;
  }
};

struct SharedGroup {
  std::size_t alignment = 0;
  std::uint32_t options = 0;
  Name tag;
  Counter live_bytes, live_count;  // of threads that are gone, and of blocks that are never cached
  std::array<Bin, kSizeClasses> idle{}, pending{};
};

// Requests below it share their blocks with it.
inline constexpr std::size_t kLeastAlignment = 64;

// Usage, host access and tag in one word.
constexpr std::uint32_t pack_options(const BlockSpec& spec) noexcept {
  return static_cast<std::uint32_t>(spec.tag.id()) << 16 | static_cast<std::uint32_t>(spec.host) << 8 |
         static_cast<std::uint32_t>(spec.usage);
}

// How many blocks of a class a thread keeps before it shares half of them.
constexpr std::uint32_t most_kept(unsigned index) noexcept {
  return class_bytes(index) <= (std::size_t{64} << 10) ? 64 : class_bytes(index) <= (std::size_t{1} << 20) ? 16 : 8;
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

  static std::uint32_t key(const PoolNode& node) noexcept {
    return node.index | static_cast<std::uint32_t>(node.generation) << kIndexBits;
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
    if (chunk.load(std::memory_order_relaxed) == nullptr)
      chunk.store(new PoolNode[std::size_t{1} << kChunkBits], std::memory_order_release);
    PoolNode* node = find(made_);
    node->index = made_++;
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
