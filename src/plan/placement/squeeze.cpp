#include "plan/placement/squeeze.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace berth::internal::planner {
namespace {

constexpr double kMostDifficult = 1 << 20;  // whole numbers: sums of prices that cancel leave nothing behind

bool meet(SectionRange a, SectionRange b) noexcept {
  return (a.first < b.last) & (b.first < a.last);  // without a branch: chance decides
}

template <class Edges>
auto position(Edges& edges, std::uint64_t at) {
  return std::partition_point(edges.begin(), edges.end(), [&](const auto& edge) { return edge.at < at; });
}

template <class Edges>
void erase(Edges& edges, std::uint64_t at, std::uint32_t node) {
  auto found = position(edges, at);
  while (found->node != node) ++found;
  edges.erase(found);
}

}  // namespace

Squeezer::Squeezer(std::span<const Extent> extents) : extents_(extents) {
  const std::size_t count = extents.size();
  difficulty_.resize(count);
  price_.resize(count);
  lows_.reserve(count);
  highs_.reserve(count);
  out_.reserve(count);
  root_length_.reserve(count);
  for (const Extent& it : extents) {
    root_length_.push_back(std::sqrt(static_cast<double>(it.sections.last - it.sections.first)));
  }
}

void Squeezer::begin(std::span<const std::uint64_t> bytes) {
  bytes_ = bytes;
  double most = 1;
  for (std::size_t i = 0; i < bytes.size(); ++i) most = std::max(most, static_cast<double>(bytes[i]) * root_length_[i]);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const double part = static_cast<double>(bytes[i]) * root_length_[i] / most;
    difficulty_[i] = 1 + static_cast<std::uint64_t>(kMostDifficult * part);
  }
}

void Squeezer::take_out(std::uint32_t node) {
  out_.push_back(node);
  std::push_heap(out_.begin(), out_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return difficulty_[a] != difficulty_[b] ? difficulty_[a] < difficulty_[b] : a > b;
  });
}

std::uint32_t Squeezer::hardest_out() {
  std::pop_heap(out_.begin(), out_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return difficulty_[a] != difficulty_[b] ? difficulty_[a] < difficulty_[b] : a > b;
  });
  const std::uint32_t node = out_.back();
  out_.pop_back();
  return node;
}

bool Squeezer::put_back(std::uint32_t node, std::span<std::uint64_t> offsets, std::uint64_t lid, std::int64_t& work) {
  const Extent& it = extents_[node];
  const std::uint64_t height = bytes_[node];
  // A place costs what begins below its end, less what ends at or below its begin. The cheapest are where a node ends.
  std::uint64_t at = 0, best = 0, least = std::numeric_limits<std::uint64_t>::max(), below = 0, begun = 0;
  std::size_t low = 0, high = 0;
  while (at + height <= lid) {
    for (; high < highs_.size() && highs_[high].at <= at; ++high) {
      below += price_[highs_[high].node] & (std::uint64_t{0} - std::uint64_t{meet(highs_[high].sections, it.sections)});
    }
    for (; low < lows_.size() && lows_[low].at < at + height; ++low) {
      begun += price_[lows_[low].node] & (std::uint64_t{0} - std::uint64_t{meet(lows_[low].sections, it.sections)});
    }
    if (begun - below < least) {
      least = begun - below;
      best = at;
      if (least == 0) break;
    }
    while (high < highs_.size() && !meet(highs_[high].sections, it.sections)) ++high;
    if (high == highs_.size()) break;
    at = (highs_[high].at + it.mask) & ~it.mask;
  }
  work -= static_cast<std::int64_t>(2 * (low + high) + 100);
  if (least == std::numeric_limits<std::uint64_t>::max()) return false;
  if (least > 0) {
    work -= static_cast<std::int64_t>(2 * lows_.size());
    std::size_t kept = 0;
    for (std::size_t i = 0; i < lows_.size(); ++i) {
      const Edge edge = lows_[i];
      const bool hit =
          edge.at < best + height && edge.at + bytes_[edge.node] > best && meet(edge.sections, it.sections);
      if (!hit) {
        lows_[kept++] = edge;
        continue;
      }
      erase(highs_, edge.at + bytes_[edge.node], edge.node);
      price_[edge.node] += difficulty_[edge.node];
      take_out(edge.node);
    }
    lows_.resize(kept);
  }
  offsets[node] = best;
  lows_.insert(position(lows_, best), {best, it.sections, node});
  highs_.insert(position(highs_, best + height), {best + height, it.sections, node});
  return true;
}

bool Squeezer::squeeze(std::span<std::uint64_t> offsets, std::uint64_t lid, std::int64_t& work) {
  lows_.clear();
  highs_.clear();
  out_.clear();
  std::copy(difficulty_.begin(), difficulty_.end(), price_.begin());
  for (std::uint32_t i = 0; i < offsets.size(); ++i) {
    if (bytes_[i] == 0) continue;
    const std::uint64_t end = offsets[i] + bytes_[i];
    if (end > lid) {
      take_out(i);
    } else {
      lows_.push_back({offsets[i], extents_[i].sections, i});
      highs_.push_back({end, extents_[i].sections, i});
    }
  }
  const auto lower = [](const Edge& a, const Edge& b) { return a.at != b.at ? a.at < b.at : a.node < b.node; };
  std::sort(lows_.begin(), lows_.end(), lower);
  std::sort(highs_.begin(), highs_.end(), lower);
  work -= static_cast<std::int64_t>(50 * offsets.size());  // to sort
  while (!out_.empty()) {
    if (work <= 0 || !put_back(hardest_out(), offsets, lid, work)) return false;
  }
  return true;
}

}  // namespace berth::internal::planner
