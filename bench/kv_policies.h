// Eviction policies to compare with, for the bench of the key-value cache: the oracle, and two simple policies that
// know nothing of time. They hold memory of their own for each block, so they are no policies for a server.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "berth/kv/eviction.h"

namespace berth::bench {

using kv::Blocks;
using kv::EvictionPolicy;
using kv::kNoNode;
using kv::Node;
using kv::Visit;

// Evicts the block that is used again last, or never. `next` has, for each block of the sequence that is being closed,
// the number of the next request that uses it.
class Oracle final : public EvictionPolicy {
 public:
  explicit Oracle(const std::vector<std::uint32_t>* next) : next_(next) {}
  std::string_view name() const noexcept override { return "oracle"; }
  Result<void> reserve(std::uint32_t nodes) override {
    due_.resize(nodes);
    return {};
  }
  void visited(const Visit& visit, Blocks&) noexcept override {
    for (std::size_t i = 0; i < visit.path.size(); ++i) due_[visit.path[i]] = (*next_)[i];
  }
  Place place(Node node, Node, Blocks&) noexcept override {
    idle_.emplace(due_[node], node);
    return {};
  }
  void leaves(Node node, Blocks&) noexcept override { idle_.erase({due_[node], node}); }
  Node victim(Blocks&) noexcept override { return idle_.rbegin()->second; }

 private:
  const std::vector<std::uint32_t>* next_;
  std::vector<std::uint32_t> due_;
  std::set<std::pair<std::uint32_t, Node>> idle_;
};

// Segmented LRU with ghosts: blocks that were used twice are protected, up to a share of the cache; the hashes of
// evicted blocks are remembered for three times as many blocks as the cache has, and count as a use.
class SegmentedLru final : public EvictionPolicy {
 public:
  explicit SegmentedLru(double share) : share_(share) {}
  std::string_view name() const noexcept override { return "segmented LRU with ghosts"; }
  std::uint32_t lists() const noexcept override { return 2; }
  Result<void> reserve(std::uint32_t nodes) override {
    most_protected_ = static_cast<std::size_t>(share_ * nodes);
    most_ghosts_ = std::size_t{3} * nodes;
    return {};
  }
  void visited(const Visit& visit, Blocks& blocks) noexcept override {
    for (const Node node : visit.path) {
      kv::Notes& notes = blocks.notes(node);
      const bool used = notes.visits != 0 || ghosts_.erase(blocks.hash(node)) != 0;
      if (used && notes.visits < 2) ++protected_;
      notes.visits = used ? 2 : 1;
      notes.last = visit.closed;
    }
  }
  Place place(Node node, Node evicted, Blocks& blocks) noexcept override {
    const std::uint32_t list = blocks.notes(node).visits >= 2 ? 1 : 0;
    if (evicted == kNoNode) return {list};
    Node newer = blocks.oldest(list);
    while (newer != kNoNode && blocks.notes(newer).last < blocks.notes(node).last) newer = blocks.newer(newer);
    return {list, newer};
  }
  Node victim(Blocks& blocks) noexcept override {
    Node node = blocks.oldest(0);
    if (node == kNoNode || (blocks.oldest(1) != kNoNode && protected_ > most_protected_)) node = blocks.oldest(1);
    if (blocks.notes(node).visits >= 2) --protected_;
    if (ghosts_.insert(blocks.hash(node)).second) order_.push_back(blocks.hash(node));
    for (; order_.size() > most_ghosts_; order_.pop_front()) ghosts_.erase(order_.front());
    return node;
  }

 private:
  const double share_;
  std::size_t most_protected_ = 0, most_ghosts_ = 0, protected_ = 0;
  std::unordered_set<std::uint32_t> ghosts_;
  std::deque<std::uint32_t> order_;
};

// LFU with ageing: evicts the block with the fewest uses, counted from the count of the last block that was evicted.
// It remembers the uses of every block there ever was.
class AgeingLfu final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "LFU with ageing"; }
  Result<void> reserve(std::uint32_t nodes) override {
    keys_.resize(nodes);
    return {};
  }
  void visited(const Visit& visit, Blocks& blocks) noexcept override {
    // Of equal counts, the least recently used goes first, and of one sequence its end.
    time_ += visit.path.size();
    for (std::size_t i = 0; i < visit.path.size(); ++i)
      keys_[visit.path[i]] = {floor_ + ++uses_[blocks.hash(visit.path[i])], time_ - i};
  }
  Place place(Node node, Node, Blocks&) noexcept override {
    idle_.emplace(keys_[node], node);
    return {};
  }
  void leaves(Node node, Blocks&) noexcept override { idle_.erase({keys_[node], node}); }
  Node victim(Blocks&) noexcept override {
    floor_ = std::max(floor_, idle_.begin()->first.first);
    return idle_.begin()->second;
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // uses, time
  std::uint64_t floor_ = 0, time_ = 0;
  std::vector<Key> keys_;
  std::unordered_map<std::uint32_t, std::uint64_t> uses_;
  std::set<std::pair<Key, Node>> idle_;
};

}  // namespace berth::bench
