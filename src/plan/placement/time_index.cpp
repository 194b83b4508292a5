#include "plan/placement/time_index.h"

namespace berth::internal::planner {

TimeIndex::TimeIndex(const Model& model) {
  const auto sections = static_cast<std::size_t>(model.sections);
  for (unsigned shift = 3;; shift += 2) {
    levels_.push_back({shift, std::vector<std::vector<Entry>>((sections >> shift) + 1)});
    if ((sections >> shift) == 0) break;
  }
  for (std::uint32_t i = 0; i < model.items.size(); ++i) {
    const Item& it = model.items[i];
    std::size_t level = 0;
    while (level + 1 < levels_.size() && it.last - it.first > (std::int32_t{1} << levels_[level].shift)) ++level;
    const unsigned shift = levels_[level].shift;
    for (std::int32_t b = it.first >> shift; b <= (it.last - 1) >> shift; ++b) {
      levels_[level].blocks[static_cast<std::size_t>(b)].push_back({it.first, it.last, i});
    }
  }
}

}  // namespace berth::internal::planner
