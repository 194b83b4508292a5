// Hill climbing over orders: first fit in some order, then exchange two items of that order near the highest, and keep
// the exchange if the plan got no larger.
#include <algorithm>
#include <utility>

#include "plan/placement/bounds.h"
#include "plan/placement/placer.h"
#include "plan/placement/random.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {

Layout hill_climb(const Model& model, std::uint64_t seed, std::uint64_t rounds, const Interrupt* interrupt) {
  std::vector<std::uint32_t> order = order_by_size(model);
  std::vector<std::uint32_t> position(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  Layout best = place_in_order(model, order, Fit::kFirst, interrupt);
  const std::uint64_t goal = load_bound(model);
  Random random(seed, 0x68696c6c);
  std::vector<std::uint32_t> near;
  for (std::uint64_t round = 1; round < rounds && best.top > goal; ++round) {
    if (interrupt && interrupt->requested()) break;
    // The items that end at the top, and what lies under them in time.
    near.clear();
    std::uint32_t highest = kNoItem;
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      if (best.top == kNowhere ? best.offsets[i] == kNowhere : best.offsets[i] + model.items[i].height == best.top)
        highest = i;
    }
    if (highest == kNoItem) break;
    const Item& top = model.items[highest];
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      if (i != highest && model.items[i].first < top.last && top.first < model.items[i].last) near.push_back(i);
    }
    if (near.empty()) break;
    // Exchange it with one of these, or two of these with each other.
    const std::uint32_t a = random.below(2) == 0 ? highest : near[random.below(near.size())];
    const std::uint32_t b = near[random.below(near.size())];
    if (a == b) continue;
    const auto exchange = [&] {
      std::swap(order[position[a]], order[position[b]]);
      std::swap(position[a], position[b]);
    };
    exchange();
    Layout trial = place_in_order(model, order, Fit::kFirst, interrupt);
    if (trial.top <= best.top) {
      best = std::move(trial);
    } else {
      exchange();
    }
  }
  return best;
}

}  // namespace berth::internal::planner
