#include "plan/placement/near_known.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "plan/placement/bounds.h"
#include "plan/placement/placer.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

// Unchanged items where they were, the largest of the others first in the smallest gaps around them.
Layout keep(const Model& model, std::span<const KnownItem> known) {
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
  const std::uint64_t bound = load_bound(model);
  Layout best = keep(model, known);
  const auto attempt = [&](bool new_first) {
    if (best.top <= bound) return;
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
  if (best.top > bound) {
    Layout layout = place_in_order(model, order_by_size(model), Fit::kFirst);
    if (layout.top < best.top) best = std::move(layout);
  }
  return best;
}

}  // namespace berth::internal::planner
