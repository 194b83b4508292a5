// The choices of the exact search: which point of the skyline to decide next, and what to try there in which order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/placement/search.h"
#include "plan/placement/search_kernels.h"

namespace berth::internal::planner {

// The section to branch on, among those inside local minima of the skyline.
template <class Unit>
std::int32_t Search<Unit>::choose_section(const Component& where) {
  const Unit* const floor = floor_.data();
  const bool counts = style_.section == SectionRule::kFewest || style_.section == SectionRule::kFewestPerFailure;
  if (counts) {
    std::fill(count_.begin() + where.first, count_.begin() + where.last + 1, 0);
    // An item at the floor of both its ends is nearly always one at the floor of all its sections: good enough here.
    const std::uint32_t standing =
        select_standing(first_.data(), last_.data(), low_.data(), floor, where.begin, where.end, selected_.data());
    for (std::uint32_t i = 0; i < standing; ++i) {
      ++count_[static_cast<std::size_t>(first_[selected_[i]])];
      --count_[static_cast<std::size_t>(last_[selected_[i]])];
    }
    for (std::int32_t s = where.first + 1; s < where.last; ++s) {
      count_[static_cast<std::size_t>(s)] += count_[static_cast<std::size_t>(s) - 1];
    }
  }
  double best = std::numeric_limits<double>::infinity();
  std::int32_t chosen = -1;
  for (std::int32_t s = where.first; s < where.last;) {
    std::int32_t end = s + 1;
    while (end < where.last && floor[end] == floor[s]) ++end;
    const bool minimum = (s == where.first || floor[s - 1] > floor[s]) && (end == where.last || floor[end] > floor[s]);
    if (minimum && floor[s] < kFar) {
      for (std::int32_t at = s; at < end; ++at) {
        const auto slack = static_cast<double>(capacity_ - floor[at] - remaining_[static_cast<std::size_t>(at)]);
        const auto failed = static_cast<double>(failures_[static_cast<std::size_t>(at)]);
        double score = 0;
        switch (style_.section) {
          case SectionRule::kLowest:
            score = static_cast<double>(floor[at]) + slack / (1.0 + static_cast<double>(capacity_));
            break;
          case SectionRule::kLeastSlack: score = slack; break;
          case SectionRule::kSlackPerFailure: score = (slack + 1.0) / failed; break;
          case SectionRule::kFewest:
            score = count_[static_cast<std::size_t>(at)] + slack / (1.0 + static_cast<double>(capacity_));
            break;
          case SectionRule::kFewestPerFailure: score = count_[static_cast<std::size_t>(at)] / failed; break;
        }
        if (score < best || (score == best && style_.mirrored)) {
          best = score;
          chosen = at;
        }
      }
    }
    s = end;
  }
  return chosen;
}

// Lists the children of a node in the order in which to try them: items to put at the point, and kLift.
template <class Unit>
void Search<Unit>::list_candidates(const Component& where, std::int32_t section, Unit level) {
  const std::size_t begin = candidates_.size();
  // Nothing that covers the section is lower than its floor, so what is below the next unit is at it.
  const std::uint32_t count = select_below(last_.data(), low_.data(), where.begin, end_before(where, section + 1),
                                           section, static_cast<Unit>(level + 1), selected_.data());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t item = selected_[i];
    if (!input_.simple && (low_[item] != level || !covers(item, section))) continue;
    std::size_t at = candidates_.size();
    candidates_.push_back(item);
    for (; at > begin && keys_[candidates_[at - 1]] > keys_[item]; --at) candidates_[at] = candidates_[at - 1];
    candidates_[at] = item;
  }
  candidates_.push_back(kLift);
}

// What painting after `mark` of the trail says was wasted by putting `item` there.
template <class Unit>
double Search<Unit>::waste_of(std::uint32_t item, std::size_t mark) const noexcept {
  const double least_slack = 0.001 * static_cast<double>(capacity_);
  double waste = 0;
  for (std::size_t t = mark; t < trail_.size(); ++t) {
    const auto section = static_cast<std::int32_t>(trail_[t].item & ~kFloor);
    const auto at = static_cast<std::size_t>(section);
    if (floor_[at] == kFar) continue;
    const bool under = first_[item] <= section && section < last_[item];
    const Unit risen = floor_[at] - trail_[t].old - (under ? height_[item] : 0);
    if (risen <= 0) continue;
    const double slack = static_cast<double>(capacity_ - floor_[at] - remaining_[at]) + least_slack;
    waste += static_cast<double>(risen) / (slack * slack);
  }
  const double area = static_cast<double>(height_[item]) * static_cast<double>(last_[item] - first_[item]);
  return waste / std::pow(area, style_.area_power);
}

// Puts those of these candidates first that waste least. The last of them is kLift and stays the last.
template <class Unit>
void Search<Unit>::look_ahead(const Component& where, std::uint32_t begin, std::uint32_t end, Unit level) {
  const std::uint32_t count = std::min(end - begin - 1, style_.look_ahead);
  if (count < 2) return;
  const auto trail = static_cast<std::uint32_t>(trail_.size());
  Component rest = where;
  --rest.count;
  scored_.clear();
  trying_ = true;
  for (std::uint32_t i = begin; i < begin + count; ++i) {
    const std::uint32_t item = candidates_[i];
    stale_first_ = where.last;
    stale_last_ = where.first;
    put(item, level);
    double waste = std::numeric_limits<double>::infinity();
    if (raise_over(where, item, level)) {
      const std::size_t mark = trail_.size();
      if (paint(rest)) waste = waste_of(item, mark);
    }
    undo(trail);
    scored_.emplace_back(waste, item);
  }
  trying_ = false;
  tried_ += count;
  // Of equals, the first by its key.
  std::stable_sort(scored_.begin(), scored_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::uint32_t i = 0; i < count; ++i) candidates_[begin + i] = scored_[i].second;
}

// If nothing covers the point (section, level), the lowest level above it at which something could.
template <class Unit>
Unit Search<Unit>::next_level(const Component& where, std::int32_t section, Unit level) const noexcept {
  Unit next = kFar;
  std::int32_t first = section, last = section + 1;
  bool waiting = false;
  const std::uint32_t end = end_before(where, section + 1);
  for (std::uint32_t i = where.begin; i < end; ++i) {
    if (low_[i] == kGone || !covers(i, section)) continue;
    if (low_[i] > level) {
      next = std::min(next, low_[i]);
    } else {
      first = std::min(first, first_[i]);
      last = std::max(last, last_[i]);
      waiting = true;
    }
  }
  if (!waiting) return next;
  // An item that waits here can be held up only by one beside the section that overlaps it.
  const std::uint32_t until = end_before(where, last);
  for (std::uint32_t i = where.begin; i < until; ++i) {
    if (low_[i] == kGone || last_[i] <= first) continue;
    if (input_.simple) {
      if (first_[i] <= section && section < last_[i]) continue;
      next = std::min(next, static_cast<Unit>(low_[i] + height_[i]));
    } else {
      if (covers(i, section)) continue;
      const auto& it = input_.items[i];
      for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
        next = std::min(next, static_cast<Unit>(low_[i] + input_.parts[p].height));
      }
    }
  }
  return next;
}

template std::int32_t Search<std::int32_t>::choose_section(const Component&);
template double Search<std::int32_t>::waste_of(std::uint32_t, std::size_t) const noexcept;
template void Search<std::int32_t>::look_ahead(const Component&, std::uint32_t, std::uint32_t, std::int32_t);
template void Search<std::int32_t>::list_candidates(const Component&, std::int32_t, std::int32_t);
template std::int32_t Search<std::int32_t>::next_level(const Component&, std::int32_t, std::int32_t) const noexcept;
template std::int32_t Search<std::int64_t>::choose_section(const Component&);
template double Search<std::int64_t>::waste_of(std::uint32_t, std::size_t) const noexcept;
template void Search<std::int64_t>::look_ahead(const Component&, std::uint32_t, std::uint32_t, std::int64_t);
template void Search<std::int64_t>::list_candidates(const Component&, std::int32_t, std::int64_t);
template std::int64_t Search<std::int64_t>::next_level(const Component&, std::int32_t, std::int64_t) const noexcept;

}  // namespace berth::internal::planner
