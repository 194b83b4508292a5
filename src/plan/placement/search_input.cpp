#include "plan/placement/search_input.h"

#include <algorithm>
#include <numeric>

namespace berth::internal::planner {

Scale scale_of(const Model& model) {
  Scale scale;
  scale.rounding = model.alignment;
  for (const Item& item : model.items) scale.rounding = std::min(scale.rounding, item.alignment);
  const std::uint64_t least = scale.rounding;
  std::uint64_t unit = 0;
  for (const Part& part : model.parts) unit = std::gcd(unit, (part.height + least - 1) / least * least);
  for (const Item& item : model.items) {
    if (item.alignment > least) unit = std::gcd(unit, item.alignment);
    if (item.fixed != kNowhere) unit = std::gcd(unit, item.fixed);
  }
  scale.unit = std::max<std::uint64_t>(unit, 1);
  return scale;
}

template <class Unit>
std::optional<ScaledModel<Unit>> scale_model(const Model& model, const Scale& scale) {
  ScaledModel<Unit> scaled;
  SearchInput<Unit>& input = scaled.input;
  input.sections = model.sections;
  std::vector<std::uint32_t> fixed;
  for (std::uint32_t i = 0; i < model.items.size(); ++i) {
    if (model.items[i].fixed != kNowhere) fixed.push_back(i);
  }
  const std::size_t most_forbidden = 64 * (model.items.size() + 1000);
  using Range = typename SearchInput<Unit>::Range;
  std::vector<Range> ranges;
  std::vector<std::uint32_t> order(model.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return model.items[a].first < model.items[b].first; });
  for (const std::uint32_t i : order) {
    const Item& it = model.items[i];
    if (it.fixed != kNowhere) continue;
    typename SearchInput<Unit>::Item item{};
    item.part_begin = static_cast<std::uint32_t>(input.parts.size());
    item.first = it.first;
    item.last = it.last;
    item.height = static_cast<Unit>(scale.up(it.height));
    item.alignment = static_cast<Unit>(std::max<std::uint64_t>(1, it.alignment / scale.unit));
    for (const Part& part : model.parts_of(i)) {
      input.parts.push_back({part.first, part.last, static_cast<Unit>(scale.up(part.height))});
    }
    item.part_end = static_cast<std::uint32_t>(input.parts.size());
    ranges.clear();
    for (const std::uint32_t other : fixed) {
      const auto low = static_cast<Unit>(model.items[other].fixed / scale.unit);
      for (const Part& theirs : model.parts_of(other)) {
        for (const Part& ours : model.parts_of(i)) {
          if (theirs.first >= ours.last || ours.first >= theirs.last) continue;
          ranges.push_back({static_cast<Unit>(low - static_cast<Unit>(scale.up(ours.height))),
                            static_cast<Unit>(low + static_cast<Unit>(scale.up(theirs.height)))});
        }
      }
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.low < b.low; });
    item.forbidden_begin = static_cast<std::uint32_t>(input.forbidden.size());
    for (const Range& range : ranges) {
      if (input.forbidden.size() > item.forbidden_begin && range.low < input.forbidden.back().high) {
        input.forbidden.back().high = std::max(input.forbidden.back().high, range.high);
      } else {
        input.forbidden.push_back(range);
      }
    }
    item.forbidden_end = static_cast<std::uint32_t>(input.forbidden.size());
    if (input.forbidden.size() > most_forbidden) return std::nullopt;
    if (item.part_end - item.part_begin != 1 || item.alignment != 1 || item.forbidden_begin != item.forbidden_end) {
      input.simple = false;
    }
    input.items.push_back(item);
    scaled.free.push_back(i);
  }
  return scaled;
}

template std::optional<ScaledModel<std::int32_t>> scale_model(const Model&, const Scale&);
template std::optional<ScaledModel<std::int64_t>> scale_model(const Model&, const Scale&);

}  // namespace berth::internal::planner
