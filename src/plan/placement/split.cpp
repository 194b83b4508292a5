// Plans over several banks and blocks.
#include <algorithm>
#include <map>

#include "plan/placement/lane.h"
#include "plan/placement/placer.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {

std::vector<BlockBytes> block_bytes(const Model& model, const Layout& layout) {
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> ends;
  for (std::size_t i = 0; i < layout.offsets.size(); ++i) {
    const Space::Address at = model.space.address(layout.offsets[i]);
    std::uint64_t& end = ends[{at.bank, at.block}];
    end = std::max(end, at.offset + model.items[i].height);
  }
  std::vector<BlockBytes> blocks;
  for (const auto& [key, bytes] : ends) blocks.push_back({key.first, key.second, bytes});
  return blocks;
}

LaneResult plan_split(const Model& model, std::uint64_t seed) {
  LaneResult result;
  result.best.top = kNowhere;
  // Bytes of each bank, the last first: smaller is better.
  const auto cost_of = [&](const Layout& layout) {
    std::vector<std::uint64_t> cost;
    for (const BlockBytes& block : block_bytes(model, layout)) {
      if (cost.size() <= block.bank) cost.resize(block.bank + std::size_t{1}, 0);
      cost[block.bank] += block.bytes;
    }
    std::reverse(cost.begin(), cost.end());
    return std::pair(cost.size(), cost);
  };
  std::pair<std::size_t, std::vector<std::uint64_t>> best_cost;
  const auto offer = [&](Layout layout, std::string_view name) {
    if (layout.top == kNowhere) return;
    auto cost = cost_of(layout);
    if (result.best.top != kNowhere && cost >= best_cost) return;
    best_cost = std::move(cost);
    result.best = std::move(layout);
    result.strategy = name;
  };
  for (const Strategy strategy : kStrategies) {
    offer(run_strategy(model, strategy, seed), strategy_name(strategy));
    result.work += 1 + model.items.size() / 8;
  }
  offer(place_in_order(model, order_by_size(model), Fit::kNearHint), "hints");
  offer(place_in_order(model, order_by_area(model), Fit::kFirst), "area_first_fit");
  return result;
}

}  // namespace berth::internal::planner
