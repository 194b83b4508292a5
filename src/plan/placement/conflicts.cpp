#include "plan/placement/conflicts.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/placement/placer.h"
#include "plan/placement/search_input.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::size_t kMostItems = 2048;
constexpr std::uint64_t kMostPairs = 500'000;
constexpr std::uint64_t kMostUnits = 4096;  // of height; where there are more, heights are rounded up
constexpr float kUnreachable = 1e30f;
constexpr std::size_t kLanes = 16;  // cells that are looked at together

}  // namespace

bool ConflictSearch::suits(const Model& model) {
  if (model.items.size() > kMostItems || model.has_fixed || model.parts.size() != model.items.size()) return false;
  return std::all_of(model.items.begin(), model.items.end(),
                     [&](const Item& item) { return item.alignment == model.alignment; }) &&
         overlapping_pairs(model) <= kMostPairs;
}

ConflictSearch::ConflictSearch(const Model& model, const Layout& start, std::uint64_t seed)
    : model_(model), best_(start), random_(seed, 0x636f6e66) {
  const auto count = static_cast<std::uint32_t>(model.items.size());
  unit_ = std::max(scale_of(model).unit, (start.top + kMostUnits - 1) / kMostUnits);
  std::vector<std::int32_t> loads(static_cast<std::size_t>(model.sections) + 1, 0);
  for (const Item& item : model.items) {
    blocks_.push_back({item.first, item.last, up(item.height)});
    loads[static_cast<std::size_t>(item.first)] += up(item.height);
    loads[static_cast<std::size_t>(item.last)] -= up(item.height);
  }
  std::partial_sum(loads.begin(), loads.end(), loads.begin());
  floor_ = *std::max_element(loads.begin(), loads.end());
  width_ = (static_cast<std::size_t>(up(start.top)) / kLanes + 1) * kLanes;
  profile_.resize(width_ * count);
  steps_.resize(width_ + 1);
  begin_.assign(count + 1, 0);
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t j = 0; j < count; ++j) {
      const Item &a = model.items[i], &b = model.items[j];
      if (i != j && a.first < b.last && b.first < a.last) neighbour_.push_back(j);
    }
    begin_[i + 1] = static_cast<std::uint32_t>(neighbour_.size());
  }
  // Seen from j in ascending order, the pairs of i come up in i's own order.
  twin_.resize(neighbour_.size());
  std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
  for (std::uint32_t e = 0; e < neighbour_.size(); ++e) twin_[e] = next[neighbour_[e]]++;
  weight_.assign(neighbour_.size(), Cell{1});
  home_top_ = up(start.top);
  for (const std::uint64_t offset : start.offsets) home_.push_back(static_cast<std::int32_t>(offset / unit_));
  at_ = nearest_ = home_;
  position_.assign(count, kNoItem);
  conflicts_.assign(count, 0);
  moved_.assign(count, 0);
  least_.assign(count, 0);
  stale_.assign(count, 1);
  conflicting_.reserve(count);
  joining_.reserve(count);
}

bool ConflictSearch::overlap(std::uint32_t a, std::uint32_t b) const noexcept {
  return at_[a] < at_[b] + blocks_[b].height && at_[b] < at_[a] + blocks_[a].height;
}

// The item's conflicts changed in number; keeps the list of conflicting items.
void ConflictSearch::count_conflicts(std::uint32_t item, std::int32_t change) {
  const bool before = conflicts_[item] > 0;
  conflicts_[item] += change;
  const bool after = conflicts_[item] > 0;
  if (after && !before) {
    position_[item] = static_cast<std::uint32_t>(conflicting_.size());
    conflicting_.push_back(item);
  } else if (before && !after) {
    const std::uint32_t last = conflicting_.back();
    conflicting_[position_[item]] = last;
    position_[last] = position_[item];
    conflicting_.pop_back();
    position_[item] = kNoItem;
  }
}

// Where `item` would overlap `other`, if that stood at `at`, it costs `weight` more.
void ConflictSearch::add(std::uint32_t item, std::uint32_t other, std::int32_t at, Cell weight) {
  const std::int32_t height = blocks_[item].height;
  const std::int32_t from = std::max(0, at - height + 1);
  const std::int32_t until = std::min(lid_ - height + 1, at + blocks_[other].height);
  Cell* const cells = profile(item);
  for (std::int32_t x = from; x < until; ++x) cells[x] += weight;
}

// An item's profile from nothing.
void ConflictSearch::draw(std::uint32_t item) {
  const std::int32_t height = blocks_[item].height, end = lid_ - height + 1;
  std::fill(steps_.begin(), steps_.begin() + end + 1, Cell{0});
  for (std::uint32_t e = begin_[item]; e < begin_[item + 1]; ++e) {
    const std::uint32_t other = neighbour_[e];
    const std::int32_t from = std::max(0, at_[other] - height + 1);
    const std::int32_t until = std::min(end, at_[other] + blocks_[other].height);
    if (from >= until) continue;
    steps_[static_cast<std::size_t>(from)] += weight_[e];
    steps_[static_cast<std::size_t>(until)] -= weight_[e];
  }
  Cell* const cells = profile(item);
  Cell sum = 0;
  for (std::int32_t x = 0; x < end; ++x) cells[x] = sum += steps_[static_cast<std::size_t>(x)];
  std::fill(cells + end, cells + width_, kUnreachable);
  stale_[item] = 1;
  work_ += 1;
}

void ConflictSearch::find_least(std::uint32_t item) {
  Cell* const cells = profile(item);
  Cell& here = cells[at_[item]];
  const Cell kept = here;
  here = kUnreachable;
  Cell least[kLanes];
  std::fill(least, least + kLanes, kUnreachable);
  const std::size_t end = static_cast<std::size_t>(lid_ - blocks_[item].height) + 1;
  for (std::size_t x = 0; x < end; x += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) least[k] = cells[x + k] < least[k] ? cells[x + k] : least[k];
  }
  here = kept;
  least_[item] = *std::min_element(least, least + kLanes);
  stale_[item] = 0;
}

// The conflicting item that gains most by a move; of equals, the one that has rested longest.
std::uint32_t ConflictSearch::best_mover() {
  std::uint32_t best = kNoItem;
  Cell best_gain = -2 * kUnreachable;
  for (const std::uint32_t item : conflicting_) {
    if (stale_[item]) find_least(item);
    const Cell gain = profile(item)[at_[item]] - least_[item];
    if (best == kNoItem || gain > best_gain || (gain == best_gain && moved_[item] < moved_[best])) {
      best = item;
      best_gain = gain;
    }
  }
  return best;
}

// One of the cheapest places, at random; only the ends of a cheap stretch count, so that items stay close together.
// The place where it is if there is no other.
std::int32_t ConflictSearch::choose_place(std::uint32_t item) {
  const Cell* const cells = profile(item);
  const Cell least = least_[item];
  const std::int32_t end = lid_ - blocks_[item].height + 1;
  std::int32_t place = at_[item];
  std::uint64_t ties = 0;
  for (std::int32_t x = 0; x < end; ++x) {
    if (cells[x] != least || x == at_[item]) continue;
    const bool inside = x > 0 && x + 1 < end && cells[x - 1] == least && cells[x + 1] == least;
    if (!inside && random_.below(++ties) == 0) place = x;
  }
  return place;
}

void ConflictSearch::move(std::uint32_t item, std::int32_t to) {
  const std::int32_t from = at_[item], height = blocks_[item].height;
  joining_.clear();
  at_[item] = to;
  for (std::uint32_t e = begin_[item]; e < begin_[item + 1]; ++e) {
    const std::uint32_t other = neighbour_[e];
    const std::int32_t low = at_[other], high = low + blocks_[other].height;
    const bool before = low < from + height && from < high;
    const bool after = low < to + height && to < high;
    if (conflicts_[other] > 0) {
      add(other, item, from, -weight_[e]);
      add(other, item, to, weight_[e]);
      stale_[other] = 1;
    }
    if (before == after) continue;
    if (after && conflicts_[other] == 0) joining_.push_back(other);
    count_conflicts(other, after ? 1 : -1);
    count_conflicts(item, after ? 1 : -1);
  }
  stale_[item] = 1;
  moved_[item] = ++moves_;
  for (const std::uint32_t other : joining_) draw(other);
  work_ += 1 + (begin_[item + 1] - begin_[item]) / 64;
}

void ConflictSearch::raise_weights() {
  for (const std::uint32_t item : conflicting_) {
    for (std::uint32_t e = begin_[item]; e < begin_[item + 1]; ++e) {
      const std::uint32_t other = neighbour_[e];
      if (other < item || !overlap(item, other)) continue;
      weight_[e] += 1;
      weight_[twin_[e]] += 1;
      add(item, other, at_[other], 1);
      add(other, item, at_[item], 1);
      stale_[item] = stale_[other] = 1;
    }
  }
}

// Everything goes home, or as near as the lid allows.
void ConflictSearch::begin(std::int32_t lid) {
  lid_ = lid;
  fewest_ = at_.size() + 1;
  conflicting_.clear();
  std::fill(position_.begin(), position_.end(), kNoItem);
  std::fill(conflicts_.begin(), conflicts_.end(), 0);
  for (std::size_t i = 0; i < at_.size(); ++i) at_[i] = std::min(home_[i], lid - blocks_[i].height);
  for (std::uint32_t i = 0; i < at_.size(); ++i) {
    for (std::uint32_t e = begin_[i]; e < begin_[i + 1]; ++e) {
      if (overlap(i, neighbour_[e])) count_conflicts(i, 1);
    }
  }
  for (const std::uint32_t item : conflicting_) draw(item);
}

// True when nothing overlaps; false when the limits end it before.
bool ConflictSearch::descend(const Limits& limits) {
  for (std::uint64_t step = 0; !conflicting_.empty(); ++step) {
    if (work_ >= limits.work || ((step & 31) == 31 && limits.interrupt.requested())) return false;
    if (conflicting_.size() < fewest_) {
      fewest_ = conflicting_.size();
      nearest_ = at_;
    }
    const std::uint32_t item = best_mover();
    if (profile(item)[at_[item]] <= least_[item]) {
      raise_weights();
      find_least(item);
    }
    move(item, choose_place(item));
  }
  return true;
}

// The layout in bytes: each item as low as it can be, in the order of their places. None ends higher than its place.
Layout ConflictSearch::settle() const {
  std::vector<std::uint32_t> order(at_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return at_[a] < at_[b]; });
  return place_in_order(model_, order, Fit::kFirst);
}

void ConflictSearch::improve(const Limits& limits) {
  work_ = 0;
  fewest_ = at_.size() + 1;
  const std::int32_t target = std::max(floor_, static_cast<std::int32_t>(limits.goal / unit_));
  while (best_.top > limits.goal && work_ < limits.work && (under_way_ || home_top_ > target)) {
    if (!under_way_) begin(std::max(target, home_top_ - std::max(1, (home_top_ - target) / 5)));
    under_way_ = !descend(limits);
    if (under_way_) break;
    home_ = at_;
    home_top_ = lid_;
    Layout found = settle();
    if (found.top < best_.top) best_ = std::move(found);
  }
}

Layout ConflictSearch::nearest() const {
  Layout layout{{}, static_cast<std::uint64_t>(lid_) * unit_};
  for (const std::int32_t at : nearest_) layout.offsets.push_back(static_cast<std::uint64_t>(at) * unit_);
  return layout;
}

}  // namespace berth::internal::planner
