#include "plan/placement/portion.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/placement/sections.h"

namespace berth::internal::planner {

Layout Portion::layout_of(const Layout& whole) const {
  Layout layout;
  layout.offsets.reserve(items.size());
  for (const std::uint32_t item : items) layout.offsets.push_back(whole.offsets[item]);
  layout.top = top_of(model, layout.offsets);
  return layout;
}

Portion portion_of(const Model& model, std::vector<std::uint32_t> items) {
  Portion portion;
  Model& made = portion.model;
  made.lane = model.lane;
  made.exact = model.exact;
  std::vector<bool> unbound(model.parts.size(), false);
  for (const std::uint32_t part : model.unbound_parts) unbound[part] = true;
  std::vector<LevelRange> ranges;
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    Item item = model.items[items[i]];
    const std::uint32_t begin = item.part_begin, end = item.part_end;
    item.part_begin = static_cast<std::uint32_t>(made.parts.size());
    for (std::uint32_t p = begin; p < end; ++p) {
      if (unbound[p]) made.unbound_parts.push_back(static_cast<std::uint32_t>(made.parts.size()));
      made.parts.push_back(model.parts[p]);
      made.parts.back().item = i;
      ranges.push_back({model.parts[p].first, model.parts[p].last});
    }
    item.part_end = static_cast<std::uint32_t>(made.parts.size());
    made.alignment = std::max(made.alignment, item.alignment);
    made.has_fixed = made.has_fixed || item.fixed != kNowhere;
    made.items.push_back(item);
  }
  std::vector<SectionRange> sections(ranges.size());
  made.sections = compress(ranges, sections);
  for (std::size_t p = 0; p < sections.size(); ++p) {
    made.parts[p].first = sections[p].first;
    made.parts[p].last = sections[p].last;
  }
  for (Item& item : made.items) {
    item.first = made.parts[item.part_begin].first;
    item.last = made.parts[item.part_end - 1].last;
  }
  portion.items = std::move(items);
  return portion;
}

std::vector<Portion> split_in_time(const Model& model) {
  std::vector<std::uint32_t> order(model.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return model.items[a].first < model.items[b].first; });
  std::vector<Portion> portions;
  std::vector<std::uint32_t> items;
  std::int32_t reach = 0;
  const auto close = [&] {
    if (items.empty()) return;
    std::sort(items.begin(), items.end());
    portions.push_back(portion_of(model, std::exchange(items, {})));
  };
  for (const std::uint32_t item : order) {
    if (model.items[item].first >= reach) close();
    items.push_back(item);
    reach = std::max(reach, model.items[item].last);
  }
  close();
  return portions;
}

}  // namespace berth::internal::planner
