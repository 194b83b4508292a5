#include "planner/sections.h"

#include <algorithm>
#include <vector>

namespace berth::planner {

std::int32_t compress(std::span<const LevelRange> ranges, std::span<SectionRange> sections) {
  const std::size_t count = ranges.size();
  std::vector<std::uint32_t> starts(count), ends(count);
  for (std::size_t i = 0; i < count; ++i) starts[i] = ends[i] = static_cast<std::uint32_t>(i);
  std::sort(starts.begin(), starts.end(), [&](auto a, auto b) { return ranges[a].first < ranges[b].first; });
  std::sort(ends.begin(), ends.end(), [&](auto a, auto b) { return ranges[a].last < ranges[b].last; });

  // A section closes at the first end after a start: that is where the live set stops growing. At equal levels ends go
  // first, because ranges are half-open.
  std::int32_t current = 0;
  bool grown = false;
  std::size_t next_start = 0;
  for (const std::uint32_t ending : ends) {
    while (next_start < count && ranges[starts[next_start]].first < ranges[ending].last) {
      sections[starts[next_start++]].first = current;
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

}  // namespace berth::planner
