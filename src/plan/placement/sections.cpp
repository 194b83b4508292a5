#include "plan/placement/sections.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace berth::internal::planner {

std::int32_t compress(std::span<const LevelRange> ranges, std::span<SectionRange> sections) {
  const std::size_t count = ranges.size();
  std::vector<std::pair<std::int64_t, std::uint32_t>> starts(count), ends(count);
  for (std::size_t i = 0; i < count; ++i) {
    starts[i] = {ranges[i].first, static_cast<std::uint32_t>(i)};
    ends[i] = {ranges[i].last, static_cast<std::uint32_t>(i)};
  }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());

  // A section closes at the first end after a start: that is where the live set stops growing. At equal levels ends go
  // first, because ranges are half-open.
  std::int32_t current = 0;
  bool grown = false;
  std::size_t next_start = 0;
  for (const auto& [end, ending] : ends) {
    while (next_start < count && starts[next_start].first < end) {
      sections[starts[next_start++].second].first = current;
      grown = true;
    }
    if (grown) {
      ++current;
      grown = false;
    }
    sections[ending].last = current;
  }
  return current;
}

}  // namespace berth::internal::planner
