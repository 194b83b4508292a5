#include "plan/placement/known_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/placement/model.h"

namespace berth::internal::planner {
namespace {

constexpr std::int32_t kBlock = 64;            // sections
constexpr std::size_t kMostPairsEach = 512;    // of a node, on average
constexpr std::uint64_t kUnplaced = kNowhere;  // an offset that is not decided yet

}  // namespace

KnownOrder::KnownOrder(std::span<const Node> nodes) {
  const std::size_t count = nodes.size();
  std::vector<LevelRange> ranges(count);
  std::vector<SectionRange> sections(count);
  for (std::size_t i = 0; i < count; ++i) ranges[i] = nodes[i].levels;
  sections_ = compress(ranges, sections);
  nodes_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) nodes_.push_back({sections[i], nodes[i].alignment - 1});
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return nodes[a].known != nodes[b].known ? nodes[a].known < nodes[b].known : a < b;
  });
  const auto width = static_cast<std::size_t>(sections_);
  skyline_.resize(width);
  block_high_.resize(width / kBlock + 1);
  block_whole_.resize(width / kBlock + 1);
  loads_.resize(width + 1);
  trial_order_.resize(count);
  trial_.resize(count);
  keys_.resize(count);
  find_pairs();
  std::size_t most = 0;
  for (std::size_t i = 0; i + 1 < pair_begin_.size(); ++i) {
    most = std::max<std::size_t>(most, pair_begin_[i + 1] - pair_begin_[i]);
  }
  taken_.reserve(most);
}

// Nodes by their first section: what is live with a node begins in its life, or is still live when it begins.
void KnownOrder::find_pairs() {
  const auto count = static_cast<std::uint32_t>(nodes_.size());
  std::vector<std::uint32_t> by_start(count), live;
  std::iota(by_start.begin(), by_start.end(), 0u);
  std::stable_sort(by_start.begin(), by_start.end(), [&](std::uint32_t a, std::uint32_t b) {
    return nodes_[a].sections.first < nodes_[b].sections.first;
  });
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const std::uint32_t node : by_start) {
    std::erase_if(live, [&](std::uint32_t it) { return nodes_[it].sections.last <= nodes_[node].sections.first; });
    if (pairs.size() + live.size() > kMostPairsEach * nodes_.size()) return;
    for (const std::uint32_t other : live) pairs.emplace_back(node, other);
    live.push_back(node);
  }
  pair_begin_.assign(count + std::size_t{1}, 0);
  for (const auto& [a, b] : pairs) ++pair_begin_[a + 1], ++pair_begin_[b + 1];
  std::partial_sum(pair_begin_.begin(), pair_begin_.end(), pair_begin_.begin());
  pair_.resize(2 * pairs.size());
  std::vector<std::uint32_t> next(pair_begin_.begin(), pair_begin_.end() - 1);
  for (const auto& [a, b] : pairs) {
    pair_[next[a]++] = b;
    pair_[next[b]++] = a;
  }
}

std::uint64_t KnownOrder::highest(SectionRange range) const noexcept {
  std::uint64_t high = 0;
  for (std::int32_t s = range.first; s < range.last;) {
    const auto block = static_cast<std::size_t>(s / kBlock);
    const std::int32_t end = std::min(range.last, (s / kBlock + 1) * kBlock);
    if (end - s == kBlock) {
      high = std::max(high, block_high_[block]);
    } else {
      high = std::max(high, block_whole_[block]);
      for (std::int32_t at = s; at < end; ++at) high = std::max(high, skyline_[static_cast<std::size_t>(at)]);
    }
    s = end;
  }
  return high;
}

void KnownOrder::raise(SectionRange range, std::uint64_t level) noexcept {
  for (std::int32_t s = range.first; s < range.last;) {
    const auto block = static_cast<std::size_t>(s / kBlock);
    const std::int32_t end = std::min(range.last, (s / kBlock + 1) * kBlock);
    block_high_[block] = std::max(block_high_[block], level);
    if (end - s == kBlock) {
      block_whole_[block] = level;
    } else {
      std::fill(skyline_.begin() + s, skyline_.begin() + end, level);
    }
    s = end;
  }
}

// Leaves the load of each section in loads_.
std::uint64_t KnownOrder::measure(std::span<const std::uint64_t> bytes) {
  std::fill(loads_.begin(), loads_.end(), 0);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {  // differences first; unsigned wrap-around cancels in the sum
    loads_[static_cast<std::size_t>(nodes_[i].sections.first)] += bytes[i];
    loads_[static_cast<std::size_t>(nodes_[i].sections.last)] -= bytes[i];
  }
  std::uint64_t load = 0;
  for (std::size_t s = 1; s < loads_.size(); ++s) loads_[s] += loads_[s - 1];
  for (const std::uint64_t each : loads_) load = std::max(load, each);
  return load;
}

// Every node as low as those before it in the order let it, without going below any of them.
std::uint64_t KnownOrder::let_down(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets) {
  std::fill(skyline_.begin(), skyline_.end(), 0);
  std::fill(block_high_.begin(), block_high_.end(), 0);
  std::fill(block_whole_.begin(), block_whole_.end(), 0);
  std::uint64_t top = 0;
  for (const std::uint32_t node : order_) {
    if (bytes[node] == 0) {
      offsets[node] = 0;
      continue;
    }
    const Extent& it = nodes_[node];
    const std::uint64_t at = (highest(it.sections) + it.mask) & ~it.mask;
    offsets[node] = at;
    raise(it.sections, at + bytes[node]);
    top = std::max(top, at + bytes[node]);
  }
  return top;
}

// Every node in the lowest place that is free during its life. Gives up, with kNowhere, at a top of `below` or more.
std::uint64_t KnownOrder::first_fit(std::span<const std::uint32_t> order, std::span<const std::uint64_t> bytes,
                                    std::span<std::uint64_t> offsets, std::uint64_t below) {
  std::fill(offsets.begin(), offsets.end(), kUnplaced);
  std::uint64_t top = 0;
  for (const std::uint32_t node : order) {
    if (bytes[node] == 0) continue;
    taken_.clear();
    for (std::uint32_t p = pair_begin_[node]; p < pair_begin_[node + std::size_t{1}]; ++p) {
      const std::uint32_t other = pair_[p];
      if (offsets[other] != kUnplaced) taken_.push_back({offsets[other], offsets[other] + bytes[other]});
    }
    std::sort(taken_.begin(), taken_.end(), [](const Gap& a, const Gap& b) { return a.low < b.low; });
    std::uint64_t at = 0;
    for (const Gap& gap : taken_) {
      if (gap.low >= at + bytes[node]) break;
      if (gap.high > at) at = (gap.high + nodes_[node].mask) & ~nodes_[node].mask;
    }
    if (at + bytes[node] >= below) return kNowhere;
    offsets[node] = at;
    top = std::max(top, at + bytes[node]);
  }
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (bytes[i] == 0) offsets[i] = 0;
  }
  return top;
}

KnownOrder::Placed KnownOrder::place(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets) {
  Placed placed{0, measure(bytes)};
  placed.top = let_down(bytes, offsets);
  if (pair_begin_.empty()) return placed;
  const auto attempt = [&](std::span<const std::uint32_t> order) {
    const std::uint64_t top = first_fit(order, bytes, trial_, placed.top);
    if (top >= placed.top) return;
    placed.top = top;
    std::copy(trial_.begin(), trial_.end(), offsets.begin());
  };
  const auto attempt_by = [&](auto key) {
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) keys_[i] = key(i);
    std::copy(order_.begin(), order_.end(), trial_order_.begin());
    std::sort(trial_order_.begin(), trial_order_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return keys_[a] != keys_[b] ? keys_[a] < keys_[b] : a < b; });
    attempt(trial_order_);
  };
  const auto length = [&](std::uint32_t i) {
    return static_cast<double>(nodes_[i].sections.last - nodes_[i].sections.first);
  };
  if (placed.top > placed.load) attempt(order_);
  if (placed.top > placed.load) attempt_by([&](std::uint32_t i) { return -static_cast<double>(bytes[i]); });
  if (placed.top > placed.load) {
    attempt_by([&](std::uint32_t i) { return -static_cast<double>(bytes[i]) * std::sqrt(length(i)); });
  }
  if (placed.top > placed.load) {
    attempt_by([&](std::uint32_t i) { return -length(i); });
  }
  return placed;
}

}  // namespace berth::internal::planner
