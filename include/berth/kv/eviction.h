// What a cache evicts. Cached blocks that no sequence uses and no other block hangs on are idle. The cache keeps them
// in lists; an EvictionPolicy decides in which list a block goes, and which block is evicted next. A policy can wrap
// another one. The cache calls its policy under its own lock, so a policy needs none; it serves one cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "berth/base/result.h"

namespace berth::kv {

// A block of tokens in the cache: the node of the tree of prefixes.
using Node = std::uint32_t;
constexpr Node kNoNode = 0xffff'ffff;

// Eight bytes of each block that belong to the policy, apart from `state`.
struct Notes {
  std::uint32_t last = 0;   // when the block was used last, in milliseconds, modulo 2^32
  std::uint8_t list = 0;    // the list that the policy chose
  std::uint8_t visits = 0;  // how many sequences have used it; stays at 255
  std::uint8_t pace = 0;    // for the policy
  std::uint8_t state = 0;   // the two low bits belong to the cache, the others to the policy
};

struct BlockRecord {
  // Of an idle block: its neighbours in the list. Of any other: sequences that use it, and cached blocks after it.
  std::uint32_t references = 0;
  std::uint32_t children = 0;
  Node parent = kNoNode;
  std::uint32_t hash = 0;  // of all tokens up to the end of this block
  Node chain = kNoNode;    // the next block with the same place in the index
  Notes notes{};
};
static_assert(sizeof(BlockRecord) == 28);

// The blocks of a cache as a policy sees them.
class Blocks {
 public:
  Notes& notes(Node node) noexcept { return records_[node].notes; }
  const Notes& notes(Node node) const noexcept { return records_[node].notes; }
  std::uint32_t hash(Node node) const noexcept { return records_[node].hash; }
  Node parent(Node node) const noexcept { return records_[node].parent; }
  // The idle block that was put into the list first or last; kNoNode if the list is empty. Constant time.
  Node oldest(std::uint32_t list) const noexcept { return lists_[list].oldest; }
  Node newest(std::uint32_t list) const noexcept { return lists_[list].newest; }
  // The idle block that was put into the list after `node`. Requires: `node` is idle.
  Node newer(Node node) const noexcept { return records_[node].children; }
  // Idle blocks, of all lists.
  std::size_t idle() const noexcept { return idle_; }
  std::uint32_t now() const noexcept { return now_; }

 protected:
  struct List {
    Node oldest = kNoNode, newest = kNoNode;
  };
  std::span<BlockRecord> records_{};
  std::span<List> lists_{};
  std::size_t idle_ = 0;
  std::uint32_t now_ = 0;
};

// One sequence, when it is closed.
struct Visit {
  std::uint32_t opened = 0;  // milliseconds, modulo 2^32
  std::uint32_t closed = 0;
  std::uint64_t prompt_tokens = 0;  // given to open()
  std::uint64_t tokens = 0;         // at the end
  std::span<const Node> path{};     // its cached blocks, from the first token on
};

class EvictionPolicy {
 public:
  struct Place {
    std::uint32_t list = 0;
    Node newer = kNoNode;  // of that list: the block goes directly before it. kNoNode: the block becomes the newest
  };

  EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;
  virtual ~EvictionPolicy() = default;

  virtual std::string_view name() const noexcept = 0;
  // How many lists it uses: 1 to 256. Asked once.
  virtual std::uint32_t lists() const noexcept { return 1; }
  // Called once, before all others: the cache has `nodes` blocks.
  virtual Result<void> reserve(std::uint32_t nodes) {
    static_cast<void>(nodes);
    return {};
  }
  // A sequence was closed. Its blocks become idle after this call.
  virtual void visited(const Visit& visit, Blocks& blocks) noexcept = 0;
  // The block becomes idle. `evicted` is the block whose eviction is the reason; kNoNode if a sequence left it.
  virtual Place place(Node node, Node evicted, Blocks& blocks) noexcept = 0;
  // A sequence uses the idle block again, or it is evicted.
  virtual void leaves(Node node, Blocks& blocks) noexcept {
    static_cast<void>(node);
    static_cast<void>(blocks);
  }
  // The idle block to evict. Requires: blocks.idle() > 0.
  virtual Node victim(Blocks& blocks) noexcept = 0;
  // Bytes that this object holds on the host.
  virtual std::size_t bookkeeping_bytes() const noexcept { return 0; }
};
using EvictionPolicyPtr = std::unique_ptr<EvictionPolicy>;

// A policy around another one: forwards every call. Derive from it and override what is different.
class EvictionAdaptor : public EvictionPolicy {
 public:
  // Requires: inner is not null.
  explicit EvictionAdaptor(EvictionPolicyPtr inner) noexcept : inner_(std::move(inner)) {}
  std::string_view name() const noexcept override { return inner_->name(); }
  std::uint32_t lists() const noexcept override { return inner_->lists(); }
  Result<void> reserve(std::uint32_t nodes) override { return inner_->reserve(nodes); }
  void visited(const Visit& visit, Blocks& blocks) noexcept override { inner_->visited(visit, blocks); }
  Place place(Node node, Node evicted, Blocks& blocks) noexcept override {
    return inner_->place(node, evicted, blocks);
  }
  void leaves(Node node, Blocks& blocks) noexcept override { inner_->leaves(node, blocks); }
  Node victim(Blocks& blocks) noexcept override { return inner_->victim(blocks); }
  std::size_t bookkeeping_bytes() const noexcept override { return inner_->bookkeeping_bytes(); }

 protected:
  EvictionPolicy& inner() noexcept { return *inner_; }

 private:
  const EvictionPolicyPtr inner_;
};

// Evicts the block that was used longest ago; of one sequence the last block first, so that a prefix outlives what
// hangs on it. Every call takes constant time.
EvictionPolicyPtr make_lru_eviction();

// Evicts the block that earns least: it learns from the sequences of this cache how likely one with such a length, pace
// and number of turns is to be continued, and after how long, and compares the hits that are to be expected with the
// time for which the memory would be held. It remembers evicted sequences too. On a sample of the blocks it plays what
// it has learned against eviction of the least recently used, and does as that does while it is not ahead. It needs no
// settings. `victim` takes O(lists), `visited` O(blocks of the sequence).
EvictionPolicyPtr make_return_eviction();

}  // namespace berth::kv
