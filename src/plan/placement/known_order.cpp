#include "plan/placement/known_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/placement/model.h"
#include "plan/placement/search_kernels.h"

namespace berth::internal::planner {
namespace {

constexpr std::int32_t kBlock = 64;       // sections
constexpr std::uint64_t kNearLoad = 200;  // above the load by this part of it is near enough
constexpr std::int64_t kNodeWork = 50;    // of placing a node, in nodes that first fit looks at
constexpr std::int64_t kDownWork = 8;     // of letting a node down, in the same
constexpr std::int64_t kMostWork = 600;   // for each node

std::vector<Extent> extents(std::span<const KnownOrder::Node> nodes, std::int32_t& sections) {
  std::vector<LevelRange> ranges;
  for (const KnownOrder::Node& node : nodes) ranges.push_back(node.levels);
  std::vector<SectionRange> compressed(nodes.size());
  sections = compress(ranges, compressed);
  std::vector<Extent> made;
  made.reserve(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) made.push_back({compressed[i], nodes[i].alignment - 1});
  return made;
}

}  // namespace

KnownOrder::KnownOrder(std::span<const Node> nodes) : nodes_(extents(nodes, sections_)), squeezer_(nodes_) {
  const std::size_t count = nodes.size();
  std::vector<std::uint64_t> offsets(count);
  std::transform(nodes.begin(), nodes.end(), offsets.begin(), [](const Node& node) { return node.known; });
  learn(offsets);
  const auto width = static_cast<std::size_t>(sections_);
  skyline_.resize(width);
  block_high_.resize(width / kBlock + 1);
  block_whole_.resize(width / kBlock + 1);
  loads_.resize(width + 1);
  trial_order_.resize(count);
  trial_.resize(count);
  keys_.resize(count);
  for (auto* each : {&placed_.first, &placed_.last}) each->resize(count + kPadding);
  for (auto* each : {&placed_.low, &placed_.high}) each->resize(count + kPadding);
}

void KnownOrder::learn(std::span<const std::uint64_t> offsets) {
  std::vector<std::uint32_t> order(offsets.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return offsets[a] != offsets[b] ? offsets[a] < offsets[b] : a < b;
  });
  if (orders_.size() < kMostOrders) {
    orders_.push_back(std::move(order));
    return;
  }
  orders_[next_] = std::move(order);
  next_ = next_ + 1 == kMostOrders ? 1 : next_ + 1;
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

// Makes the skyline one of loads: highest() is then the highest load of a life.
void KnownOrder::show_loads() {
  std::fill(block_high_.begin(), block_high_.end(), 0);
  std::fill(block_whole_.begin(), block_whole_.end(), 0);
  for (std::size_t s = 0; s < skyline_.size(); ++s) {
    skyline_[s] = loads_[s];
    block_high_[s / kBlock] = std::max(block_high_[s / kBlock], loads_[s]);
  }
}

// Every node as low as those before it in the order let it, without going below any of them. Gives up, with kNowhere,
// at a top of `below` or more.
std::uint64_t KnownOrder::let_down(std::span<const std::uint32_t> order, std::span<const std::uint64_t> bytes,
                                   std::span<std::uint64_t> offsets, std::uint64_t below) {
  std::fill(skyline_.begin(), skyline_.end(), 0);
  std::fill(block_high_.begin(), block_high_.end(), 0);
  std::fill(block_whole_.begin(), block_whole_.end(), 0);
  std::uint64_t top = 0;
  for (const std::uint32_t node : order) {
    if (bytes[node] == 0) {
      offsets[node] = 0;
      continue;
    }
    const Extent& it = nodes_[node];
    const std::uint64_t at = (highest(it.sections) + it.mask) & ~it.mask;
    offsets[node] = at;
    raise(it.sections, at + bytes[node]);
    top = std::max(top, at + bytes[node]);
    if (top >= below) return kNowhere;
  }
  return top;
}

// Every node in the lowest place that is free during its life. Gives up, with kNowhere, at a top of `below` or more.
std::uint64_t KnownOrder::first_fit(std::span<const std::uint32_t> order, std::span<const std::uint64_t> bytes,
                                    std::span<std::uint64_t> offsets, std::uint64_t below, std::int64_t& work) {
  Rectangles& r = placed_;
  r.count = 0;
  std::uint64_t top = 0;
  const auto insert = [&](auto& values, std::size_t where, auto value) {
    std::copy_backward(values.begin() + static_cast<std::ptrdiff_t>(where), values.begin() + r.count,
                       values.begin() + r.count + 1);
    values[where] = value;
  };
  for (const std::uint32_t node : order) {
    if (bytes[node] == 0) {
      offsets[node] = 0;
      continue;
    }
    const Extent& it = nodes_[node];
    const auto [at, seen] =
        lowest_place(r.first.data(), r.last.data(), r.low.data(), r.high.data(), r.count, it.sections.first,
                     it.sections.last, static_cast<std::int64_t>(bytes[node]), static_cast<std::int64_t>(it.mask));
    const std::uint64_t end = static_cast<std::uint64_t>(at) + bytes[node];
    work -= kNodeWork + seen;
    if (end >= below || work < 0) return kNowhere;
    offsets[node] = static_cast<std::uint64_t>(at);
    const auto where =
        static_cast<std::size_t>(std::upper_bound(r.low.begin(), r.low.begin() + r.count, at) - r.low.begin());
    insert(r.first, where, it.sections.first);
    insert(r.last, where, it.sections.last);
    insert(r.low, where, at);
    insert(r.high, where, static_cast<std::int64_t>(end));
    ++r.count;
    top = std::max(top, end);
  }
  return top;
}

KnownOrder::Placed KnownOrder::place(std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets) {
  Placed placed{0, measure(bytes)};
  const std::uint64_t goal = placed.load + placed.load / kNearLoad;
  placed.top = let_down(orders_[0], bytes, offsets, kNowhere);
  std::span<const std::uint32_t> lowest = orders_[0];
  for (std::size_t i = 1; i < orders_.size() && placed.top > goal; ++i) {
    const std::uint64_t top = let_down(orders_[i], bytes, trial_, placed.top);
    if (top == kNowhere) continue;
    std::copy(trial_.begin(), trial_.end(), offsets.begin());
    placed.top = top;
    lowest = orders_[i];
  }
  if (placed.top <= goal) return placed;
  show_loads();
  std::int64_t work = kMostWork * static_cast<std::int64_t>(nodes_.size());
  work -= kDownWork * static_cast<std::int64_t>(nodes_.size() * (orders_.size() - 1));
  const auto attempt = [&](std::span<const std::uint32_t> order) {
    if (placed.top <= goal || work <= 0) return;
    const std::uint64_t top = first_fit(order, bytes, trial_, placed.top, work);
    if (top >= placed.top) return;
    placed.top = top;
    std::copy(trial_.begin(), trial_.end(), offsets.begin());
  };
  const auto attempt_by = [&](auto key) {
    if (placed.top <= goal || work <= 0) return;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) keys_[i] = key(i);
    std::iota(trial_order_.begin(), trial_order_.end(), 0u);
    std::sort(trial_order_.begin(), trial_order_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return keys_[a] != keys_[b] ? keys_[a] < keys_[b] : a < b; });
    attempt(trial_order_);
  };
  const auto size = [&](std::uint32_t i) { return static_cast<double>(bytes[i]); };
  const double scale = 1.0 / (1.0 + static_cast<double>(placed.load));
  attempt(lowest);
  // By size and length, what lives where it is full first, then without regard to that; then strictly by the load, the
  // largest of equals first.
  const auto weight = [&](std::uint32_t i) {
    return size(i) * std::sqrt(static_cast<double>(nodes_[i].sections.last - nodes_[i].sections.first));
  };
  attempt_by([&](std::uint32_t i) {
    double heat = static_cast<double>(highest(nodes_[i].sections)) * scale;
    for (int power = 1; power < 16; power *= 2) heat *= heat;
    return -weight(i) * heat;
  });
  attempt_by([&](std::uint32_t i) { return -weight(i); });
  attempt_by([&](std::uint32_t i) { return -static_cast<double>(highest(nodes_[i].sections)) - size(i) * scale; });
  if (placed.top <= goal || work <= 0) return placed;
  // The best of them, squeezed: to the goal with half of the work that is left, then only halfway.
  squeezer_.begin(bytes);
  for (const std::uint64_t lid : {goal, goal + (placed.top - goal) / 2}) {
    std::copy(offsets.begin(), offsets.end(), trial_.begin());
    std::int64_t share = lid == goal ? work / 2 : work;
    work -= share;
    const bool worked = squeezer_.squeeze(trial_, lid, share);
    work += share;
    if (!worked) continue;
    placed.top = lid;
    std::copy(trial_.begin(), trial_.end(), offsets.begin());
    break;
  }
  placed.top = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (bytes[i] > 0) placed.top = std::max(placed.top, offsets[i] + bytes[i]);
  }
  return placed;
}

}  // namespace berth::internal::planner
