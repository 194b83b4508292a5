#include "plan/placement/search.h"

#include <algorithm>
#include <utility>

#include "plan/placement/random.h"

namespace berth::internal::planner {

template <class Unit>
Search<Unit>::Search(const SearchInput<Unit>& input) : input_(input) {
  const std::size_t items = input.items.size();
  const auto sections = static_cast<std::size_t>(input.sections);
  offset_.resize(items);
  low_.resize(items);
  active_.resize(items);
  sorted_.resize(items);
  floor_.resize(sections);
  remaining_.resize(sections);
  failures_.resize(sections);
  count_.resize(sections + 1);
  reach_.resize(sections + 1);
  components_.reserve(64);
  frames_.reserve(items + 64);
  candidates_.reserve(4 * items + 64);
  trail_.reserve(16 * items + 64);
}

// The lowest offset at or above `level` that the item may have.
template <class Unit>
Unit Search<Unit>::legal(std::uint32_t item, Unit level) const noexcept {
  const auto& it = input_.items[item];
  if (it.alignment == 1 && it.forbidden_begin == it.forbidden_end) return level;
  const auto align = [&](Unit at) { return (at + it.alignment - 1) / it.alignment * it.alignment; };
  level = align(level);
  for (std::uint32_t i = it.forbidden_begin; i < it.forbidden_end; ++i) {
    if (input_.forbidden[i].low < level && level < input_.forbidden[i].high) level = align(input_.forbidden[i].high);
  }
  return level;
}

template <class Unit>
void Search<Unit>::reset(Unit capacity) {
  capacity_ = capacity;
  nodes_ = 0;
  random_ = mix(style_.seed);
  components_.clear();
  frames_.clear();
  candidates_.clear();
  trail_.clear();
  std::fill(remaining_.begin(), remaining_.end(), Unit{0});
  std::fill(failures_.begin(), failures_.end(), 1u);
  for (std::uint32_t i = 0; i < active_.size(); ++i) {
    active_[i] = i;
    low_[i] = legal(i, 0);
  }
  for (const auto& part : input_.parts) {
    for (std::int32_t s = part.first; s < part.last; ++s) remaining_[static_cast<std::size_t>(s)] += part.height;
  }
}

template <class Unit>
void Search<Unit>::fail_at(std::int32_t section) noexcept {
  ++failures_[static_cast<std::size_t>(section)];
}

// The item was placed at `level`: what overlaps it in time and is still to place must go above it. False if something
// would then end above the capacity. `where` still contains the placed item.
template <class Unit>
bool Search<Unit>::raise_over(const Component& where, std::uint32_t placed, Unit level) {
  const auto& mine = input_.items[placed];
  if (input_.simple) {
    const Unit top = level + mine.height;
    const std::int32_t first = mine.first, last = mine.last;
    for (std::uint32_t i = where.begin; i < where.end; ++i) {
      const std::uint32_t other = active_[i];
      const auto& it = input_.items[other];
      if (it.first < last && first < it.last && low_[other] < top && other != placed) {
        widen(it.first, it.last, low_[other]);
        trail_.push_back({other, low_[other]});
        low_[other] = top;
        if (top + it.height > capacity_) {
          fail_at(std::max(it.first, first));
          return false;
        }
      }
    }
    return true;
  }
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    const std::uint32_t other = active_[i];
    const auto& it = input_.items[other];
    if (other == placed || it.first >= mine.last || mine.first >= it.last) continue;
    Unit low = low_[other];
    for (std::uint32_t a = it.part_begin; a < it.part_end; ++a) {
      for (std::uint32_t b = mine.part_begin; b < mine.part_end; ++b) {
        const auto &theirs = input_.parts[a], &ours = input_.parts[b];
        if (theirs.first < ours.last && ours.first < theirs.last) low = std::max(low, level + ours.height);
      }
    }
    if (low == low_[other]) continue;
    low = legal(other, low);
    widen(it.first, it.last, low_[other]);
    trail_.push_back({other, low_[other]});
    low_[other] = low;
    if (low + it.height > capacity_) {
      fail_at(std::max(it.first, mine.first));
      return false;
    }
  }
  return true;
}

// Nothing may start below `level` in this section any more.
template <class Unit>
bool Search<Unit>::lift(const Component& where, std::int32_t section, Unit level) {
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    const std::uint32_t item = active_[i];
    if (low_[item] >= level || !covers(item, section)) continue;
    widen(input_.items[item].first, input_.items[item].last, low_[item]);
    trail_.push_back({item, low_[item]});
    low_[item] = legal(item, level);
    if (low_[item] + input_.items[item].height > capacity_) {
      fail_at(section);
      return false;
    }
  }
  return true;
}

// An item that stood at `low` in these sections is about to leave: wherever the skyline is that low it may rise.
template <class Unit>
void Search<Unit>::widen(std::int32_t first, std::int32_t last, Unit low) noexcept {
  const Unit* const floor = floor_.data();
  if (first < stale_first_) {
    const std::int32_t until = std::min(last, stale_first_);
    while (first < until && floor[first] != low) ++first;
    if (first < until) stale_first_ = first, stale_last_ = std::max(stale_last_, first + 1);
  }
  if (last > stale_last_) {
    const std::int32_t from = std::max(first, stale_last_);
    while (last > from && floor[last - 1] != low) --last;
    if (last > from) stale_last_ = last, stale_first_ = std::min(stale_first_, last - 1);
  }
}

// Draws the stale stretch of a component's skyline anew. False if some section can no longer hold what remains to be
// placed in it.
template <class Unit>
bool Search<Unit>::paint(const Component& where) {
  const std::int32_t begin = stale_first_, end = stale_last_;
  if (begin >= end) return true;
  Unit* const floor = floor_.data();
  for (std::int32_t s = begin; s < end; ++s) {
    trail_.push_back({static_cast<std::uint32_t>(s) | kFloor, floor[s]});
    floor[s] = kFar;
  }
  Unit across = kFar;  // the lowest item that covers the whole stretch: most do, and need no drawing
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    const auto& it = input_.items[active_[i]];
    const Unit low = low_[active_[i]];
    if (it.first >= end || it.last <= begin || low >= across) continue;
    if (input_.simple) {
      if (it.first <= begin && it.last >= end) {
        across = low;
        continue;
      }
      const std::int32_t last = std::min(it.last, end);
      for (std::int32_t s = std::max(it.first, begin); s < last; ++s) floor[s] = std::min(floor[s], low);
    } else {
      for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
        const std::int32_t last = std::min(input_.parts[p].last, end);
        for (std::int32_t s = std::max(input_.parts[p].first, begin); s < last; ++s) floor[s] = std::min(floor[s], low);
      }
    }
  }
  const Unit* const remaining = remaining_.data();
  for (std::int32_t s = begin; s < end; ++s) {
    floor[s] = std::min(floor[s], across);
    if (remaining[s] != 0 && floor[s] + remaining[s] > capacity_) {
      fail_at(s);
      return false;
    }
  }
  return true;
}

template <class Unit>
void Search<Unit>::undo(std::uint32_t mark) noexcept {
  while (trail_.size() > mark) {
    const TrailEntry entry = trail_.back();
    trail_.pop_back();
    if (entry.item & kFloor) {
      floor_[entry.item & ~kFloor] = entry.old;
    } else if (entry.item & kPlaced) {
      const auto& it = input_.items[entry.item & ~kPlaced];
      for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
        const auto& part = input_.parts[p];
        for (std::int32_t s = part.first; s < part.last; ++s) remaining_[static_cast<std::size_t>(s)] += part.height;
      }
    } else {
      low_[entry.item] = entry.old;
    }
  }
}

// Appends to components_ the parts that `where` falls into. Reorders the slice of active_ so
// that each component's items are together; as a set the slice stays what it was.
template <class Unit>
void Search<Unit>::split(const Component& where) {
  const std::uint32_t end = where.end;
  if (where.begin == end) return;
  std::fill(reach_.begin() + where.first, reach_.begin() + where.last, 0);
  for (std::uint32_t i = where.begin; i < end; ++i) {
    const auto& it = input_.items[active_[i]];
    auto& reach = reach_[static_cast<std::size_t>(it.first)];
    reach = std::max(reach, it.last);
  }
  const std::size_t before = components_.size();
  std::int32_t open_first = -1, until = -1;
  for (std::int32_t s = where.first; s < where.last; ++s) {
    if (open_first >= 0 && s == until) {
      components_.push_back({open_first, until, 0, 0});
      open_first = -1;
    }
    const std::int32_t reach = reach_[static_cast<std::size_t>(s)];
    if (reach == 0) continue;
    if (open_first < 0) open_first = s, until = reach;
    until = std::max(until, reach);
  }
  if (open_first >= 0) components_.push_back({open_first, until, 0, 0});
  const std::size_t made = components_.size() - before;
  if (made == 1) {
    components_.back().begin = where.begin;
    components_.back().end = end;
    return;
  }
  // Count, then deal the items out. count_ tells each section's component.
  for (std::size_t c = before; c < components_.size(); ++c) {
    std::fill(count_.begin() + components_[c].first, count_.begin() + components_[c].last,
              static_cast<std::int32_t>(c - before));
  }
  for (std::uint32_t i = where.begin; i < end; ++i) {
    ++components_[before + static_cast<std::size_t>(count_[static_cast<std::size_t>(input_.items[active_[i]].first)])]
          .end;
  }
  std::uint32_t at = where.begin;
  for (std::size_t c = before; c < components_.size(); ++c) {
    const std::uint32_t size = components_[c].end;
    components_[c].begin = components_[c].end = at;
    at += size;
  }
  std::copy(active_.begin() + where.begin, active_.begin() + end, sorted_.begin());
  for (std::uint32_t i = 0; i < end - where.begin; ++i) {
    const auto first = static_cast<std::size_t>(input_.items[sorted_[i]].first);
    active_[components_[before + static_cast<std::size_t>(count_[first])].end++] = sorted_[i];
  }
  // The smallest first: if one cannot be solved, the others were in vain.
  std::sort(components_.begin() + static_cast<std::ptrdiff_t>(before), components_.end(),
            [](const Component& a, const Component& b) {
              return std::pair(a.end - a.begin, a.first) < std::pair(b.end - b.begin, b.first);
            });
}

template <class Unit>
void Search<Unit>::open(const Component& where) {
  Frame frame{};
  frame.where = where;
  frame.section = choose_section(where);
  frame.level = floor_[static_cast<std::size_t>(frame.section)];
  frame.trail = static_cast<std::uint32_t>(trail_.size());
  frame.candidate_begin = frame.candidate_next = static_cast<std::uint32_t>(candidates_.size());
  list_candidates(where, frame.section, frame.level);
  frame.candidate_end = static_cast<std::uint32_t>(candidates_.size());
  frame.component_begin = frame.component_next = frame.component_end = static_cast<std::uint32_t>(components_.size());
  frames_.push_back(frame);
}

// Moves a frame to its next child. False when there is none left.
template <class Unit>
bool Search<Unit>::advance(Frame& frame) {
  for (;;) {
    undo(frame.trail);
    components_.resize(frame.component_begin);
    if (frame.candidate_next == frame.candidate_end) return false;
    ++nodes_;
    const std::uint32_t child = candidates_[frame.candidate_next++];
    bool good;
    stale_first_ = frame.where.last;
    stale_last_ = frame.where.first;
    Component rest = frame.where;
    if (child != kLift) {
      offset_[child] = frame.level;
      trail_.push_back({child | kPlaced, 0});
      const auto& it = input_.items[child];
      for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
        const auto& part = input_.parts[p];
        for (std::int32_t s = part.first; s < part.last; ++s) remaining_[static_cast<std::size_t>(s)] -= part.height;
      }
      widen(it.first, it.last, frame.level);
      good = raise_over(frame.where, child, frame.level);
      if (good) {
        const auto at = std::find(active_.begin() + rest.begin, active_.begin() + rest.end, child);
        std::swap(*at, active_[--rest.end]);
      }
    } else {
      const Unit level = next_level(frame.where, frame.section, frame.level);
      good = level + remaining_[static_cast<std::size_t>(frame.section)] <= capacity_;
      if (!good) fail_at(frame.section);
      good = good && lift(frame.where, frame.section, level);
    }
    if (!good || !paint(rest)) continue;
    split(rest);
    frame.component_next = frame.component_begin;
    frame.component_end = static_cast<std::uint32_t>(components_.size());
    frame.active = true;
    return true;
  }
}

template <class Unit>
SearchOutcome Search<Unit>::run(Unit capacity, const SearchStyle& style, std::span<const Unit> guide,
                                const Interrupt* interrupt) {
  style_ = style;
  guide_ = guide;
  reset(capacity);
  if (active_.empty()) return SearchOutcome::kFound;
  const Component all{0, input_.sections, 0, static_cast<std::uint32_t>(active_.size())};
  for (std::uint32_t i = 0; i < active_.size(); ++i) {
    if (low_[i] + input_.items[i].height > capacity) return SearchOutcome::kImpossible;
  }
  stale_first_ = 0;
  stale_last_ = input_.sections;
  if (!paint(all)) return SearchOutcome::kImpossible;
  split(all);
  const auto roots = static_cast<std::uint32_t>(components_.size());
  std::uint32_t next_root = 0;

  while (next_root < roots || !frames_.empty()) {
    if (frames_.empty()) {
      open(components_[next_root++]);
    } else {
      Frame& frame = frames_.back();
      if (frame.active && frame.component_next < frame.component_end) {
        open(components_[frame.component_next++]);
      } else if (frame.active) {  // every component of this child is solved: so is the frame
        candidates_.resize(frame.candidate_begin);
        components_.resize(frame.component_begin);
        frames_.pop_back();
        continue;
      }
    }
    // Move the top frame on; when it has no child left, its parent's child has failed too.
    while (!advance(frames_.back())) {
      candidates_.resize(frames_.back().candidate_begin);
      frames_.pop_back();
      if (frames_.empty()) return SearchOutcome::kImpossible;
    }
    if (nodes_ >= style_.node_limit || ((nodes_ & 63) == 0 && interrupt && interrupt->requested())) {
      return SearchOutcome::kLimit;
    }
  }
  return SearchOutcome::kFound;
}

template class Search<std::int32_t>;
template class Search<std::int64_t>;

}  // namespace berth::internal::planner
