#include "plan/placement/search.h"

#include <algorithm>
#include <utility>

#include "plan/placement/search_kernels.h"

namespace berth::internal::planner {

template <class Unit>
Search<Unit>::Search(const SearchInput<Unit>& input) : input_(input) {
  const std::size_t items = input.items.size();
  const auto sections = static_cast<std::size_t>(input.sections);
  offset_.resize(items);
  first_.assign(items + kPadding, 0);
  last_.assign(items + kPadding, 0);
  height_.assign(items + kPadding, 0);
  low_.assign(items + kPadding, kGone);
  selected_.resize(items + kPadding);
  floor_.resize(sections);
  watch_.resize(sections);
  load_.assign(sections, 0);
  crossing_at_first_.assign(sections, 0);
  failures_.resize(sections);
  count_.resize(sections + 1);
  start_.assign(sections + 1, static_cast<std::uint32_t>(items));
  for (std::size_t i = items; i-- > 0;) {
    const auto& it = input.items[i];
    first_[i] = it.first;
    last_[i] = it.last;
    height_[i] = it.height;
    start_[static_cast<std::size_t>(it.first)] = static_cast<std::uint32_t>(i);
    for (std::int32_t s = it.first + 1; s < it.last; ++s) ++crossing_at_first_[static_cast<std::size_t>(s)];
  }
  for (std::size_t s = sections; s-- > 0;) start_[s] = std::min(start_[s], start_[s + 1]);
  for (const auto& part : input.parts) {
    for (std::int32_t s = part.first; s < part.last; ++s) load_[static_cast<std::size_t>(s)] += part.height;
  }
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
  nodes_ = tried_ = 0;
  components_.clear();
  frames_.clear();
  candidates_.clear();
  trail_.clear();
  const auto none = static_cast<std::uint32_t>(input_.items.size());
  std::fill(floor_.begin(), floor_.end(), Unit{0});
  std::fill(watch_.begin(), watch_.end(), none);  // nobody stands anywhere yet: all is to be painted
  std::fill(failures_.begin(), failures_.end(), 1u);
  remaining_ = load_;
  crossing_ = crossing_at_first_;
  for (std::uint32_t i = 0; i < none; ++i) low_[i] = input_.simple ? 0 : legal(i, 0);
}

// Puts an item at `level`. True if what is left may fall apart.
template <class Unit>
bool Search<Unit>::put(std::uint32_t item, Unit level) {
  const auto& it = input_.items[item];
  offset_[item] = level;
  trail_.push_back({item | kPlaced, 0, low_[item]});
  low_[item] = kGone;
  for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
    const auto& part = input_.parts[p];
    for (std::int32_t s = part.first; s < part.last; ++s) remaining_[static_cast<std::size_t>(s)] -= part.height;
  }
  bool alone = false;
  for (std::int32_t s = it.first + 1; s < it.last; ++s) alone |= --crossing_[static_cast<std::size_t>(s)] == 0;
  stale_first_ = std::min(stale_first_, it.first);
  stale_last_ = std::max(stale_last_, it.last);
  return alone;
}

// The item cannot be below `level` any more. False if it would then end above the capacity.
template <class Unit>
bool Search<Unit>::raise(std::uint32_t item, Unit level) {
  trail_.push_back({item, 0, low_[item]});
  low_[item] = level;
  stale_first_ = std::min(stale_first_, first_[item]);
  stale_last_ = std::max(stale_last_, last_[item]);
  return level + height_[item] <= capacity_;
}

// The item was placed at `level`: what overlaps it in time and is still to place must go above it. False if something
// would then end above the capacity.
template <class Unit>
bool Search<Unit>::raise_over(const Component& where, std::uint32_t placed, Unit level) {
  const auto& mine = input_.items[placed];
  const std::uint32_t end = end_before(where, mine.last);
  const std::uint32_t count = select_below(last_.data(), low_.data(), where.begin, end, mine.first,
                                           static_cast<Unit>(level + mine.height), selected_.data());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t other = selected_[i];
    Unit low = level + mine.height;
    if (!input_.simple) {
      low = low_[other];
      const auto& it = input_.items[other];
      for (std::uint32_t a = it.part_begin; a < it.part_end; ++a) {
        for (std::uint32_t b = mine.part_begin; b < mine.part_end; ++b) {
          const auto &theirs = input_.parts[a], &ours = input_.parts[b];
          if (theirs.first < ours.last && ours.first < theirs.last) low = std::max(low, level + ours.height);
        }
      }
      if (low == low_[other]) continue;
      low = legal(other, low);
    }
    if (!raise(other, low)) {
      fail_at(std::max(first_[other], mine.first));
      return false;
    }
  }
  return true;
}

// Nothing may start below `level` in this section any more.
template <class Unit>
bool Search<Unit>::lift(const Component& where, std::int32_t section, Unit level) {
  const std::uint32_t end = end_before(where, section + 1);
  const std::uint32_t count =
      select_below(last_.data(), low_.data(), where.begin, end, section, level, selected_.data());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t item = selected_[i];
    if (!input_.simple && !covers(item, section)) continue;
    if (!raise(item, input_.simple ? level : legal(item, level))) {
      fail_at(section);
      return false;
    }
  }
  return true;
}

// The lowest that anything can still be put in a section. Requires: the section before it, if it is of the component,
// is painted.
template <class Unit>
Unit Search<Unit>::lowest_over(const Component& where, std::int32_t section, std::uint32_t& which) const noexcept {
  const std::uint32_t end = end_before(where, section + 1);
  if (input_.simple && section > where.first) {
    // If what stands lowest in the section before goes on into this one, only what begins here can be lower.
    const auto before = static_cast<std::size_t>(section) - 1;
    if (floor_[before] != kFar && last_[watch_[before]] > section) {
      Unit least = floor_[before];
      which = watch_[before];
      for (std::uint32_t i = start_[before + 1]; i < end; ++i) {
        if (low_[i] >= least) continue;
        least = low_[i];
        which = i;
      }
      return least;
    }
  }
  if (input_.simple) return least_low(last_.data(), low_.data(), where.begin, end, section, kFar, which);
  Unit least = kFar;
  for (std::uint32_t i = where.begin; i < end; ++i) {
    if (low_[i] >= least || !covers(i, section)) continue;
    least = low_[i];
    which = i;
  }
  return least;
}

// Draws the skyline anew where it may have risen: where the item that it was drawn for is elsewhere now. False if some
// section can no longer hold what remains to be placed in it.
template <class Unit>
bool Search<Unit>::paint(const Component& where) {
  for (std::int32_t s = stale_first_; s < stale_last_; ++s) {
    const auto at = static_cast<std::size_t>(s);
    const Unit before = floor_[at];
    if (before == kFar || low_[watch_[at]] == before) continue;
    trail_.push_back({static_cast<std::uint32_t>(s) | kFloor, watch_[at], before});
    floor_[at] = lowest_over(where, s, watch_[at]);
    if (remaining_[at] != 0 && floor_[at] + remaining_[at] > capacity_) {
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
    if (entry.item & kPlaced) {
      const std::uint32_t item = entry.item & ~kPlaced;
      const auto& it = input_.items[item];
      low_[item] = entry.old;
      for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
        const auto& part = input_.parts[p];
        for (std::int32_t s = part.first; s < part.last; ++s) remaining_[static_cast<std::size_t>(s)] += part.height;
      }
      for (std::int32_t s = it.first + 1; s < it.last; ++s) ++crossing_[static_cast<std::size_t>(s)];
    } else if (entry.item & kFloor) {
      const std::size_t section = entry.item & ~kFloor;
      floor_[section] = entry.old;
      watch_[section] = entry.watch;
    } else {
      low_[entry.item] = entry.old;
    }
  }
}

// Appends to components_ the parts that `where` falls into, the smallest first: if one cannot be solved, the others
// were in vain.
template <class Unit>
void Search<Unit>::split(const Component& where) {
  const std::size_t before = components_.size();
  std::int32_t reach = -1;
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    if (low_[i] == kGone) continue;
    if (first_[i] >= reach) components_.push_back({first_[i], reach, i, i, 0});
    reach = std::max(reach, last_[i]);
    Component& now = components_.back();
    now.last = reach;
    now.end = i + 1;
    ++now.count;
  }
  std::sort(
      components_.begin() + static_cast<std::ptrdiff_t>(before), components_.end(),
      [](const Component& a, const Component& b) { return std::pair(a.count, a.first) < std::pair(b.count, b.first); });
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
  if (style_.look_ahead > 0) look_ahead(where, frame.candidate_begin, frame.candidate_end, frame.level);
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
    const std::uint32_t child = candidates_[frame.candidate_next++];
    stale_first_ = frame.where.last;
    stale_last_ = frame.where.first;
    Component rest = frame.where;
    bool good, apart = false;
    if (child != kLift) {
      ++nodes_;
      apart = put(child, frame.level);
      --rest.count;
      good = raise_over(frame.where, child, frame.level);
    } else {
      const Unit level = next_level(frame.where, frame.section, frame.level);
      if (level + remaining_[static_cast<std::size_t>(frame.section)] > capacity_) {  // no choice, so not a node
        fail_at(frame.section);
        continue;
      }
      ++nodes_;
      good = lift(frame.where, frame.section, level);
    }
    if (!good || !paint(rest)) continue;
    if (apart) {
      split(rest);
    } else if (rest.count > 0) {
      components_.push_back(rest);
    }
    frame.component_next = frame.component_begin;
    frame.component_end = static_cast<std::uint32_t>(components_.size());
    frame.active = true;
    return true;
  }
}

template <class Unit>
SearchOutcome Search<Unit>::run(Unit capacity, const SearchStyle& style, std::span<const double> keys,
                                const Interrupt* interrupt) {
  style_ = style;
  keys_ = keys;
  reset(capacity);
  const auto items = static_cast<std::uint32_t>(input_.items.size());
  if (items == 0) return SearchOutcome::kFound;
  for (std::uint32_t i = 0; i < items; ++i) {
    if (low_[i] + height_[i] > capacity) return SearchOutcome::kImpossible;
  }
  const Component all{0, input_.sections, 0, items, items};
  stale_first_ = 0;
  stale_last_ = input_.sections;
  if (!paint(all)) return SearchOutcome::kImpossible;
  trail_.clear();
  split(all);
  const auto roots = static_cast<std::uint32_t>(components_.size());
  std::uint32_t next_root = 0, steps = 0;
  const std::uint32_t often = style.look_ahead > 0 ? 7 : 63;  // looking ahead, a step takes many times as long

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
    if (nodes_ >= style_.node_limit || ((++steps & often) == 0 && interrupt && interrupt->requested())) {
      return SearchOutcome::kLimit;
    }
  }
  return SearchOutcome::kFound;
}

template class Search<std::int32_t>;
template class Search<std::int64_t>;

}  // namespace berth::internal::planner
