// The tree of prefixes. A node is a block of tokens; full blocks of committed tokens are in an index by the hash of all
// tokens up to their end, and hang on the block before them. Used under the lock of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "berth/kv/cache.h"
#include "berth/kv/eviction.h"

namespace berth::internal::kv_cache {

using berth::kv::BlockRecord;
using berth::kv::Blocks;
using berth::kv::EvictionPolicy;
using berth::kv::kNoNode;
using berth::kv::Node;
using berth::kv::Notes;
using berth::kv::Token;

// The low bits of Notes::state.
constexpr std::uint8_t kStateMask = 3;
constexpr std::uint8_t kFreeBlock = 0;
constexpr std::uint8_t kPrivateBlock = 1;  // of sequences, and not in the index
constexpr std::uint8_t kSharedBlock = 2;   // in the index, and used by sequences or by blocks after it
constexpr std::uint8_t kIdleBlock = 3;     // in the index, and in a list of idle blocks

// The parent of a first block: this bit, and the number of its salt.
constexpr Node kRootBit = 0x8000'0000;

std::uint32_t hash_block(std::uint32_t before, std::span<const Token> tokens) noexcept;

class BlockTree : public Blocks {
 public:
  Result<void> reserve(std::uint32_t nodes, std::uint32_t block_tokens, EvictionPolicy& policy);

  // --- Salts: the first blocks of one salt hang on one root ---
  Node find_root(std::uint64_t salt) const;  // kNoNode if nothing was opened with it
  Node enter_root(std::uint64_t salt);       // counts one more user
  void leave_root(Node root) noexcept;
  std::uint32_t root_hash(Node root) const noexcept { return hash_of_salt(roots_[root & ~kRootBit].salt); }
  std::uint64_t salt(Node root) const noexcept { return roots_[root & ~kRootBit].salt; }
  static std::uint32_t hash_of_salt(std::uint64_t salt) noexcept;

  // --- The index ---
  void prefetch(std::uint32_t hash) const noexcept { __builtin_prefetch(&buckets_[bucket(hash)]); }
  void prefetch_block(std::uint32_t hash) const noexcept {
    const Node node = buckets_[bucket(hash)];
    if (node == kNoNode) return;
    __builtin_prefetch(&records_[node]);
    __builtin_prefetch(&tokens_[std::size_t{node} * block_tokens_]);
  }
  Node find(Node parent, std::uint32_t hash, std::span<const Token> tokens) const noexcept;
  // Requires: the node is private and full; its parent is in the index or a root.
  void insert(Node node, Node parent, std::uint32_t hash);
  // Takes an idle block out of the index. It is private afterwards, without references. The parent may become idle.
  void remove(Node node) noexcept;

  // --- References of sequences ---
  void start(Node node) noexcept;  // a free node becomes private, with one reference
  void add_reference(Node node) noexcept;
  // True if the node is private and nobody uses it any more: the caller frees it.
  bool drop_reference(Node node) noexcept;
  void set_free(Node node) noexcept { set_state(node, kFreeBlock); }

  std::uint8_t state(Node node) const noexcept { return records_[node].notes.state & kStateMask; }
  bool in_index(Node node) const noexcept { return state(node) >= kSharedBlock; }
  // Sequences that use the node.
  std::uint32_t references(Node node) const noexcept {
    return state(node) == kIdleBlock ? 0 : records_[node].references;
  }
  std::uint32_t children(Node node) const noexcept { return state(node) == kIdleBlock ? 0 : records_[node].children; }
  Token* tokens(Node node) noexcept { return &tokens_[std::size_t{node} * block_tokens_]; }
  const Token* tokens(Node node) const noexcept { return &tokens_[std::size_t{node} * block_tokens_]; }
  std::uint32_t nodes() const noexcept { return static_cast<std::uint32_t>(storage_.size()); }
  // Nodes that sequences use.
  std::uint64_t pinned() const noexcept { return pinned_; }
  std::uint64_t indexed() const noexcept { return indexed_; }
  void set_now(std::uint32_t now) noexcept { now_ = now; }
  std::size_t bookkeeping_bytes() const noexcept;
  Result<void> check() const;

 private:
  std::size_t bucket(std::uint32_t hash) const noexcept { return std::uint64_t{hash} * buckets_.size() >> 32; }
  void set_state(Node node, std::uint8_t state) noexcept {
    Notes& notes = records_[node].notes;
    notes.state = static_cast<std::uint8_t>((notes.state & ~kStateMask) | state);
  }
  void make_idle(Node node, Node evicted) noexcept;
  void leave_list(Node node) noexcept;

  struct Root {
    std::uint64_t salt = 0;
    std::uint64_t users = 0;
  };
  std::vector<BlockRecord> storage_;
  std::vector<Token> tokens_;
  std::vector<Node> buckets_;
  std::vector<List> list_storage_;
  std::vector<Root> roots_;
  std::vector<Node> free_roots_;
  std::unordered_map<std::uint64_t, Node> root_of_;
  EvictionPolicy* policy_ = nullptr;
  std::uint32_t block_tokens_ = 1;
  std::uint64_t pinned_ = 0;
  std::uint64_t indexed_ = 0;
};

}  // namespace berth::internal::kv_cache
