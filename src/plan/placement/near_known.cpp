#include "plan/placement/near_known.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "plan/placement/arrangement.h"
#include "plan/placement/bounds.h"
#include "plan/placement/placer.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::uint64_t kNearBound = 400;  // above the bound by this part of it is near enough
constexpr std::int64_t kWork = 100;        // nodes looked at for each item, to get there

// Unchanged items where they were, the others around them; what would stand too high throws others out. Only for items
// of one part that may go anywhere.
Layout settle(const Model& model, Layout layout, std::uint64_t goal) {
  std::vector<Arrangement::Node> nodes;
  nodes.reserve(model.items.size());
  for (std::size_t i = 0; i < model.items.size(); ++i) {
    const Item& it = model.items[i];
    nodes.push_back({{it.first, it.last}, it.height, it.alignment, layout.offsets[i]});
  }
  Arrangement arrangement(std::move(nodes));
  arrangement.settle(goal, goal, kWork * static_cast<std::int64_t>(model.items.size()));
  for (std::uint32_t i = 0; i < model.items.size(); ++i) layout.offsets[i] = arrangement.node(i).offset;
  layout.top = top_of(model, layout.offsets);
  return layout;
}

// Unchanged items where they were, the largest of the others first in the smallest gaps around them.
Layout keep(const Model& model, std::span<const KnownItem> known, std::uint64_t goal) {
  Placer placer(model);
  Layout layout{std::vector<std::uint64_t>(model.items.size(), kNowhere), 0};
  for (const bool fixed : {true, false}) {
    for (std::uint32_t i = 0; i < model.items.size(); ++i) {
      const Item& it = model.items[i];
      if ((it.fixed != kNowhere) != fixed) continue;
      const std::uint64_t at = fixed ? it.fixed : known[i].offset;
      if (!fixed && (!known[i].same || at == kNowhere)) continue;
      if (model.space.place(at, it.height, it.alignment) != at || !placer.free_at(i, at)) continue;
      layout.offsets[i] = at;
      placer.put(i, at);
    }
  }
  if (model.space.plain() && !model.has_fixed && model.parts.size() == model.items.size()) {
    return settle(model, std::move(layout), goal);
  }
  for (const std::uint32_t i : order_by_size(model)) {
    if (layout.offsets[i] != kNowhere) continue;
    const std::uint64_t at = placer.find(i, Fit::kBest);
    if (at == kNowhere) break;
    layout.offsets[i] = at;
    placer.put(i, at);
  }
  layout.top = top_of(model, layout.offsets);
  return layout;
}

}  // namespace

Layout place_near_known(const Model& model, std::span<const KnownItem> known) {
  const std::uint64_t bound = load_bound(model), goal = bound + bound / kNearBound;
  Layout best = keep(model, known, goal);
  const auto attempt = [&](bool new_first) {
    if (best.top <= goal) return;
    std::vector<std::uint32_t> order(model.items.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const auto key = [&](std::uint32_t i) {
        const bool fresh = known[i].offset == kNowhere;
        return std::tuple(fresh != new_first, fresh ? ~model.items[i].height : known[i].offset, i);
      };
      return key(a) < key(b);
    });
    Layout layout = place_in_order(model, order, Fit::kFirst);
    if (layout.top < best.top) best = std::move(layout);
  };
  attempt(false);
  attempt(true);
  if (best.top > goal) {
    Layout layout = place_in_order(model, order_by_size(model), Fit::kFirst);
    if (layout.top < best.top) best = std::move(layout);
  }
  return best;
}

}  // namespace berth::internal::planner
