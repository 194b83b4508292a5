// The choices of the exact search: which point of the skyline to decide next, and what to try there in which order.
#include <algorithm>

#include "plan/placement/search.h"

namespace berth::internal::planner {

// The section to branch on, among those inside local minima of the skyline.
template <class Unit>
std::int32_t Search<Unit>::choose_section(const Component& where) {
  const Unit* const floor = floor_.data();
  const bool counts = style_.section == SectionRule::kFewest || style_.section == SectionRule::kFewestPerFailure;
  if (counts) {
    std::fill(count_.begin() + where.first, count_.begin() + where.last + 1, 0);
    for (std::uint32_t i = where.begin; i < where.end; ++i) {
      const auto& it = input_.items[active_[i]];
      const Unit low = low_[active_[i]];
      // An item at the floor of both its ends is nearly always one at the floor of all its sections: good enough here.
      if (floor[it.first] == low && floor[it.last - 1] == low) {
        ++count_[static_cast<std::size_t>(it.first)];
        --count_[static_cast<std::size_t>(it.last)];
      }
    }
    for (std::int32_t s = where.first + 1; s < where.last; ++s) {
      count_[static_cast<std::size_t>(s)] += count_[static_cast<std::size_t>(s) - 1];
    }
  }
  double best = std::numeric_limits<double>::infinity();
  std::int32_t chosen = -1;
  std::uint32_t ties = 1;
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
        if (score < best) {
          best = score;
          chosen = at;
          ties = 1;
        } else if (score == best) {
          ++ties;
          if (style_.mirrored || random() % ties == 0) chosen = at;
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
  keys_.clear();
  const bool guided = style_.value == ValueRule::kGuided;
  const auto insert = [&](double key, std::uint32_t child) {  // kept ascending; there are few
    std::size_t at = keys_.size();
    keys_.push_back(key);
    candidates_.push_back(child);
    for (; at > 0 && keys_[at - 1] > key; --at) {
      keys_[at] = keys_[at - 1];
      candidates_[begin + at] = candidates_[begin + at - 1];
    }
    keys_[at] = key;
    candidates_[begin + at] = child;
  };
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    const std::uint32_t item = active_[i];
    if (low_[item] != level || !covers(item, section)) continue;
    const auto& it = input_.items[item];
    const auto height = static_cast<double>(it.height);
    const auto length = static_cast<double>(it.last - it.first);
    double key = 0;
    switch (style_.value) {
      case ValueRule::kTallest: key = -height; break;
      case ValueRule::kLongest: key = -length * (1.0 + height / (1.0 + static_cast<double>(capacity_))); break;
      case ValueRule::kLargest: key = -height * length; break;
      case ValueRule::kGuided: key = static_cast<double>(guide_[item]); break;
      case ValueRule::kShortest: key = height; break;
    }
    if (style_.noise > 0 && !guided) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      key *= 1.0 + style_.noise * (unit - 0.5);
    }
    insert(key, item);
  }
  candidates_.push_back(kLift);
}

// If nothing covers the point (section, level), the lowest level above it at which something could.
template <class Unit>
Unit Search<Unit>::next_level(const Component& where, std::int32_t section, Unit level) const noexcept {
  Unit next = kFar;
  std::int32_t first = section, last = section + 1;
  bool waiting = false;
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    const std::uint32_t item = active_[i];
    if (!covers(item, section)) continue;
    if (low_[item] > level) {
      next = std::min(next, low_[item]);
    } else {
      const auto& it = input_.items[item];
      first = std::min(first, it.first);
      last = std::max(last, it.last);
      waiting = true;
    }
  }
  if (!waiting) return next;
  // An item that waits here can be held up only by one beside the section that overlaps it.
  for (std::uint32_t i = where.begin; i < where.end; ++i) {
    const std::uint32_t item = active_[i];
    const auto& it = input_.items[item];
    if (it.last <= first || it.first >= last) continue;
    if (input_.simple) {
      if (it.first <= section && section < it.last) continue;
      next = std::min(next, low_[item] + it.height);
    } else {
      if (covers(item, section)) continue;
      for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
        next = std::min(next, low_[item] + input_.parts[p].height);
      }
    }
  }
  return next;
}

template std::int32_t Search<std::int32_t>::choose_section(const Component&);
template void Search<std::int32_t>::list_candidates(const Component&, std::int32_t, std::int32_t);
template std::int32_t Search<std::int32_t>::next_level(const Component&, std::int32_t, std::int32_t) const noexcept;
template std::int32_t Search<std::int64_t>::choose_section(const Component&);
template void Search<std::int64_t>::list_candidates(const Component&, std::int32_t, std::int64_t);
template std::int64_t Search<std::int64_t>::next_level(const Component&, std::int32_t, std::int64_t) const noexcept;

}  // namespace berth::internal::planner
