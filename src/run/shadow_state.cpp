#include "run/shadow_state.h"

#include <algorithm>

namespace berth::internal {
namespace {

// Two floats become two halves, four bytes: a range's shadow covers whole pairs, so its pad half belongs to it.
std::size_t padded(std::size_t end) {
  return (end + 7) / 8 * 8;
}

// The ranges of an ascending disjoint list that overlap `range`, as [first, last).
auto overlapping(std::vector<ByteRange>& ranges, ByteRange range) {
  const auto first = std::lower_bound(ranges.begin(), ranges.end(), range.begin,
                                      [](const ByteRange& r, std::size_t at) { return padded(r.end) <= at; });
  const auto last = std::lower_bound(first, ranges.end(), padded(range.end),
                                     [](const ByteRange& r, std::size_t at) { return r.begin < at; });
  return std::pair(first, last);
}

}  // namespace

void ShadowState::set_fresh(ByteRange range) {
  auto [first, last] = overlapping(fresh_, range);
  if (first == last) {
    fresh_.insert(first, range);
  } else {
    *first = range;
    fresh_.erase(first + 1, last);
  }
}

void ShadowState::set_stale(ByteRange range) {
  if (range.begin == range.end) return;
  const auto [first, last] = overlapping(fresh_, range);
  fresh_.erase(first, last);
}

void ShadowState::expose(ByteRange range) {
  if (range.begin == range.end) return;
  // Touching ranges merge too, so that handing out every node leaves one range.
  const auto first = std::lower_bound(exposed_.begin(), exposed_.end(), range.begin,
                                      [](const ByteRange& r, std::size_t at) { return r.end < at; });
  auto last = first;
  for (; last != exposed_.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  if (first == last) {
    exposed_.insert(first, range);
  } else {
    *first = range;
    exposed_.erase(first + 1, last);
  }
}

bool ShadowState::is_fresh(ByteRange range) const {
  const auto open = std::lower_bound(exposed_.begin(), exposed_.end(), range.begin,
                                     [](const ByteRange& r, std::size_t at) { return r.end <= at; });
  if (open != exposed_.end() && open->begin < range.end) return false;
  const auto found = std::lower_bound(fresh_.begin(), fresh_.end(), range.begin,
                                      [](const ByteRange& r, std::size_t at) { return r.begin < at; });
  return found != fresh_.end() && *found == range;
}

}  // namespace berth::internal
