#include "plan/placement/known_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/placement/model.h"

namespace berth::internal::planner {
namespace {

constexpr std::int32_t kBlock = 64;        // sections
constexpr std::size_t kMostFitted = 4096;  // nodes; first fit looks at all that lies below a node's place

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
  placed_.reserve(count);
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

// The highest load of these sections.
std::uint64_t KnownOrder::fullest(SectionRange range) const noexcept {
  std::uint64_t load = 0;
  for (std::int32_t s = range.first; s < range.last; ++s) load = std::max(load, loads_[static_cast<std::size_t>(s)]);
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
  placed_.clear();
  std::uint64_t top = 0;
  for (const std::uint32_t node : order) {
    if (bytes[node] == 0) {
      offsets[node] = 0;
      continue;
    }
    const Extent& it = nodes_[node];
    std::uint64_t at = 0;
    for (const Rectangle& other : placed_) {
      if (other.low >= at + bytes[node]) break;
      if (other.high > at && other.sections.first < it.sections.last && it.sections.first < other.sections.last) {
        at = (other.high + it.mask) & ~it.mask;
      }
    }
    if (at + bytes[node] >= below) return kNowhere;
    offsets[node] = at;
    const auto above = std::upper_bound(placed_.begin(), placed_.end(), at,
                                        [](std::uint64_t low, const Rectangle& other) { return low < other.low; });
    placed_.insert(above, {at, at + bytes[node], it.sections});
    top = std::max(top, at + bytes[node]);
  }
  return top;
}

KnownOrder::Placed KnownOrder::place(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets) {
  Placed placed{0, measure(bytes)};
  placed.top = let_down(bytes, offsets);
  if (nodes_.size() > kMostFitted) return placed;
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
  const auto size = [&](std::uint32_t i) { return static_cast<double>(bytes[i]); };
  // What lives at the fullest level first, the largest of it first; then by size and length; then as it was.
  if (placed.top > placed.load) {
    const double scale = 1.0 / (1.0 + static_cast<double>(placed.load));
    attempt_by([&](std::uint32_t i) { return -static_cast<double>(fullest(nodes_[i].sections)) - size(i) * scale; });
  }
  if (placed.top > placed.load) {
    attempt_by([&](std::uint32_t i) {
      return -size(i) * std::sqrt(static_cast<double>(nodes_[i].sections.last - nodes_[i].sections.first));
    });
  }
  if (placed.top > placed.load) attempt(order_);
  return placed;
}

}  // namespace berth::internal::planner
