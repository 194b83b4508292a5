#include "plan/placement/arrangement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace berth::internal::planner {
namespace {

constexpr std::int64_t kStepWork = 50;  // of moving a node, in nodes looked at

bool meet(LevelRange a, LevelRange b) noexcept {
  return a.first < b.last && b.first < a.last;
}

std::vector<std::int64_t> levels_of(const std::vector<Arrangement::Node>& nodes) {
  std::vector<std::int64_t> levels;
  for (const Arrangement::Node& node : nodes) {
    if (node.bytes == 0) continue;
    levels.push_back(node.levels.first);
    levels.push_back(node.levels.last);
  }
  return levels;
}

}  // namespace

Arrangement::Arrangement(std::vector<Node> nodes, std::uint64_t alignment)
    : unit_(alignment), load_(levels_of(nodes)), index_(load_.ranks()) {
  nodes_.reserve(nodes.size());
  for (std::uint32_t i = 0; i < nodes.size(); ++i) set(i, nodes[i]);
  // What has an offset is where it should be.
  std::size_t kept = 0;
  for (std::size_t f = 0; f < fresh_.size(); ++f) {
    if (wishes_[f] == kNowhere) {
      fresh_[kept++] = fresh_[f];
      continue;
    }
    place_at(fresh_[f], wishes_[f]);
  }
  fresh_.resize(kept);
  wishes_.assign(kept, kNowhere);
  log_.clear();
  changes_ = 0;
}

// A node that ends at a level that is not known lives in part of its rank.
std::int32_t Arrangement::last_rank(const Node& node) const noexcept {
  return std::max(load_.rank(node.levels.last - 1), first_rank(node)) + 1;
}

std::uint64_t Arrangement::top() {
  while (!ends_.empty()) {
    const auto [end, node] = ends_.front();
    if (nodes_[node].offset != kNowhere && nodes_[node].offset + nodes_[node].bytes == end) return end;
    std::pop_heap(ends_.begin(), ends_.end());
    ends_.pop_back();
  }
  return 0;
}

void Arrangement::place_at(std::uint32_t i, std::uint64_t offset) {
  nodes_[i].offset = offset;
  if (offset == kNowhere) return;
  ends_.emplace_back(offset + nodes_[i].bytes, i);
  std::push_heap(ends_.begin(), ends_.end());
}

void Arrangement::move(std::uint32_t i, std::uint64_t offset) {
  log_.push_back({i, nodes_[i].offset});
  place_at(i, offset);
}

void Arrangement::undo(std::size_t moves) {
  for (; log_.size() > moves; log_.pop_back()) place_at(log_.back().node, log_.back().from);
}

void Arrangement::set(std::uint32_t i, const Node& node) {
  ++changes_;
  if (i == nodes_.size()) {
    nodes_.emplace_back();
    difficulty_.push_back(0);
    thrown_.push_back(0);
  }
  Node& mine = nodes_[i];
  const bool inside = mine.offset != kNowhere && node.offset == mine.offset && node.bytes > 0 &&
                      node.bytes <= mine.bytes && node.levels.first >= mine.levels.first &&
                      node.levels.last <= mine.levels.last && node.offset % node.alignment == 0;
  if (mine.bytes > 0) {
    index_.remove(i, first_rank(mine), last_rank(mine));
    load_.remove(mine.levels, padded_bytes(mine));
    padded_ -= padded_bytes(mine) != mine.bytes ? 1 : 0;
  }
  if (!inside) move(i, kNowhere);
  const std::uint64_t offset = inside ? mine.offset : kNowhere;
  mine = node;
  place_at(i, offset);
  if (node.bytes == 0) return;
  index_.add(i, first_rank(mine), last_rank(mine));
  load_.add(mine.levels, padded_bytes(mine));
  padded_ += padded_bytes(mine) != mine.bytes ? 1 : 0;
  difficulty_[i] = static_cast<double>(mine.bytes) * std::sqrt(static_cast<double>(last_rank(mine) - first_rank(mine)));
  if (inside) return;
  fresh_.push_back(i);
  wishes_.push_back(node.offset);
}

void Arrangement::collect(std::uint32_t i) {
  const Node& mine = nodes_[i];
  obstacles_.clear();
  index_.alive(first_rank(mine), last_rank(mine), [&](std::uint32_t other) {
    const Node& it = nodes_[other];
    if (it.offset != kNowhere && meet(it.levels, mine.levels)) {
      obstacles_.push_back({it.offset, it.offset + it.bytes, other});
    }
  });
}

bool Arrangement::free_at(std::uint32_t i, std::uint64_t offset) {
  if (offset % nodes_[i].alignment != 0) return false;
  collect(i);
  return std::none_of(obstacles_.begin(), obstacles_.end(), [&](const Obstacle& other) {
    return other.low < offset + nodes_[i].bytes && offset < other.high;
  });
}

// The smallest gap under the lid that the node fits into; if there is none, the lowest above.
std::uint64_t Arrangement::gap_for(std::uint32_t i, std::uint64_t lid) {
  const Node& mine = nodes_[i];
  const std::uint64_t mask = mine.alignment - 1;
  collect(i);
  std::sort(obstacles_.begin(), obstacles_.end(), [](const Obstacle& a, const Obstacle& b) { return a.low < b.low; });
  std::uint64_t best = kNowhere, least = kNowhere, at = 0;
  for (const Obstacle& other : obstacles_) {
    if (other.low >= at + mine.bytes) {
      if (at + mine.bytes > lid) break;
      const std::uint64_t room = other.low - at - mine.bytes;
      if (room < least) best = at, least = room;
    }
    if (other.high > at) at = (other.high + mask) & ~mask;
  }
  return best == kNowhere ? at : best;
}

// Where the node throws out what is easiest to place elsewhere. A place costs what begins below its end, less what ends
// at or below its begin; the cheapest are where a node ends. Requires: gap_for() was asked for this node just before.
std::uint64_t Arrangement::cheapest(std::uint32_t i, std::uint64_t lid) {
  const Node& mine = nodes_[i];
  const auto price = [&](const Obstacle& other) {
    return difficulty_[other.node] * (1.0 + static_cast<double>(thrown_[other.node]));
  };
  ends_there_.clear();
  for (const Obstacle& other : obstacles_) ends_there_.push_back({other.high, price(other)});
  std::sort(ends_there_.begin(), ends_there_.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  double cost = 0, least = std::numeric_limits<double>::infinity();
  std::uint64_t best = kNowhere;
  std::size_t low = 0, high = 0;
  for (std::uint64_t at = 0; at + mine.bytes <= lid;) {
    for (; high < ends_there_.size() && ends_there_[high].at <= at; ++high) cost -= ends_there_[high].price;
    for (; low < obstacles_.size() && obstacles_[low].low < at + mine.bytes; ++low) cost += price(obstacles_[low]);
    if (cost < least) best = at, least = cost;
    if (high == ends_there_.size()) break;
    at = (ends_there_[high].at + mine.alignment - 1) & ~(mine.alignment - 1);
  }
  return best;
}

void Arrangement::take_out(std::uint32_t i) {
  out_.push_back(i);
  std::push_heap(out_.begin(), out_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return difficulty_[a] != difficulty_[b] ? difficulty_[a] < difficulty_[b] : a > b;
  });
}

std::uint32_t Arrangement::hardest_out() {
  std::pop_heap(out_.begin(), out_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return difficulty_[a] != difficulty_[b] ? difficulty_[a] < difficulty_[b] : a > b;
  });
  const std::uint32_t i = out_.back();
  out_.pop_back();
  return i;
}

// Takes out what ends above the lid and puts all that is out below it. False if that did not work: what was moved is
// for the caller to undo.
bool Arrangement::squeeze(std::uint64_t lid, std::int64_t& work) {
  while (top() > lid) {
    const std::uint32_t i = ends_.front().second;
    move(i, kNowhere);
    take_out(i);
  }
  bool worked = true;
  while (worked && !out_.empty()) {
    const std::uint32_t i = hardest_out();
    std::uint64_t at = gap_for(i, lid);
    const bool free = at + nodes_[i].bytes <= lid;
    if (!free) at = cheapest(i, lid);
    work -= kStepWork + static_cast<std::int64_t>(free ? obstacles_.size() : 2 * obstacles_.size());
    worked = at != kNowhere && (free || work > 0);
    if (!worked) break;
    if (!free) {
      for (const Obstacle& other : obstacles_) {
        if (other.low >= at + nodes_[i].bytes || other.high <= at) continue;
        if (thrown_[other.node] == 0) touched_.push_back(other.node);
        thrown_[other.node] += 1;
        move(other.node, kNowhere);
        take_out(other.node);
      }
    }
    move(i, at);
  }
  for (const std::uint32_t i : touched_) thrown_[i] = 0;
  touched_.clear();
  out_.clear();
  return worked;
}

void Arrangement::settle(std::uint64_t goal, std::uint64_t limit, std::int64_t work) {
  if (ends_.size() > 4 * nodes_.size() + 64) {
    ends_.clear();
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].offset != kNowhere) ends_.emplace_back(nodes_[i].offset + nodes_[i].bytes, i);
    }
    std::make_heap(ends_.begin(), ends_.end());
  }
  std::size_t waiting = 0;
  for (std::size_t f = 0; f < fresh_.size(); ++f) {
    const std::uint32_t i = fresh_[f];
    if (nodes_[i].bytes == 0 || nodes_[i].offset != kNowhere) continue;  // it was set twice
    if (wishes_[f] != kNowhere && wishes_[f] + nodes_[i].bytes <= limit && free_at(i, wishes_[f])) {
      move(i, wishes_[f]);
    } else {
      fresh_[waiting++] = i;
    }
  }
  fresh_.resize(waiting);
  std::sort(fresh_.begin(), fresh_.end());
  fresh_.erase(std::unique(fresh_.begin(), fresh_.end()), fresh_.end());
  std::sort(fresh_.begin(), fresh_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return difficulty_[a] != difficulty_[b] ? difficulty_[a] > difficulty_[b] : a < b;
  });
  for (const std::uint32_t i : fresh_) move(i, gap_for(i, goal));
  for (const std::uint64_t lid : {goal, limit}) {
    if (top() <= limit) break;
    const std::size_t complete = log_.size();
    std::int64_t part = lid == goal ? work / 2 : work;
    work -= part;
    if (!squeeze(lid, part)) undo(complete);
    work += part;
  }
  fresh_.clear();
  wishes_.clear();
}

void Arrangement::replace(std::span<const std::uint64_t> offsets) {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].bytes > 0 && nodes_[i].offset != offsets[i]) move(i, offsets[i]);
  }
}

std::vector<std::uint32_t> Arrangement::take_moved() {
  std::vector<std::uint32_t> moved;
  std::stable_sort(log_.begin(), log_.end(), [](const Move& a, const Move& b) { return a.node < b.node; });
  for (std::size_t m = 0; m < log_.size(); ++m) {
    if (m > 0 && log_[m].node == log_[m - 1].node) continue;
    const Node& it = nodes_[log_[m].node];
    if (it.bytes > 0 && it.offset != log_[m].from) moved.push_back(log_[m].node);
  }
  log_.clear();
  return moved;
}

}  // namespace berth::internal::planner
