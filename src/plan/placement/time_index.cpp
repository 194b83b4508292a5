#include "plan/placement/time_index.h"

namespace berth::internal::planner {

TimeIndex::TimeIndex(std::int32_t sections) {
  for (unsigned shift = 3;; shift += 2) {
    levels_.push_back({shift, std::vector<std::vector<Entry>>((static_cast<std::size_t>(sections) >> shift) + 1)});
    if ((sections >> shift) == 0) break;
  }
}

TimeIndex::TimeIndex(const Model& model) : TimeIndex(model.sections) {
  for (std::uint32_t i = 0; i < model.items.size(); ++i) add(i, model.items[i].first, model.items[i].last);
}

TimeIndex::Level& TimeIndex::level_for(std::int32_t first, std::int32_t last) {
  std::size_t level = 0;
  while (level + 1 < levels_.size() && last - first > (std::int32_t{1} << levels_[level].shift)) ++level;
  return levels_[level];
}

void TimeIndex::add(std::uint32_t item, std::int32_t first, std::int32_t last) {
  Level& level = level_for(first, last);
  for (std::int32_t b = first >> level.shift; b <= (last - 1) >> level.shift; ++b) {
    level.blocks[static_cast<std::size_t>(b)].push_back({first, last, item});
  }
}

void TimeIndex::remove(std::uint32_t item, std::int32_t first, std::int32_t last) {
  Level& level = level_for(first, last);
  for (std::int32_t b = first >> level.shift; b <= (last - 1) >> level.shift; ++b) {
    std::vector<Entry>& block = level.blocks[static_cast<std::size_t>(b)];
    const auto at = std::find_if(block.begin(), block.end(), [&](const Entry& entry) { return entry.item == item; });
    *at = block.back();
    block.pop_back();
  }
}

}  // namespace berth::internal::planner
