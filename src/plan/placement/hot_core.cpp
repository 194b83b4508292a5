#include "plan/placement/hot_core.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "plan/placement/bounds.h"
#include "plan/placement/descents.h"
#include "plan/placement/placer.h"
#include "plan/placement/pursuit.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::size_t kMostRestarted = 10'000;  // items of a core
constexpr std::size_t kMostDescended = 20'000;
constexpr std::uint64_t kMostCorePairs =
    50'000'000;                        // that live together: a node of a descent looks at those of an item
constexpr std::uint64_t kUsual = 512;  // items of the problems that a unit of work is a node of
constexpr int kUnitBits = 26;          // a core's peak in units: small numbers are quick

std::vector<std::uint32_t> core_items(const Model& model, const CoreShape& shape) {
  const std::vector<std::uint64_t> loads = section_loads(model);
  const auto peak = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  std::vector<std::uint32_t> hot_before(loads.size() + 1, 0);
  for (std::size_t s = 0; s < loads.size(); ++s) {
    hot_before[s + 1] = hot_before[s] + (static_cast<double>(loads[s]) >= (1.0 - shape.depth) * peak ? 1 : 0);
  }
  std::vector<std::uint32_t> items;
  for (std::uint32_t i = 0; i < model.items.size(); ++i) {
    const Item& it = model.items[i];
    const bool hot = hot_before[static_cast<std::size_t>(it.last)] > hot_before[static_cast<std::size_t>(it.first)];
    if (hot && static_cast<double>(it.height) >= shape.least * peak) items.push_back(i);
  }
  return items;
}

// Rounds sizes up to a fraction of the peak, so that 32 bits hold them.
void coarsen(Model& model, std::uint64_t peak) {
  const std::uint64_t unit = std::bit_ceil(std::max<std::uint64_t>(1, peak >> kUnitBits));
  const auto up = [&](std::uint64_t bytes) { return (bytes + unit - 1) / unit * unit; };
  for (Part& part : model.parts) part.height = up(part.height);
  for (Item& item : model.items) item.height = up(item.height);
}

// Packs the core; the best that the searches find within the limits.
Layout pack(const Model& core, const ImprovementLimits& limits, Crew& crew, std::uint64_t& work) {
  Layout best = place_in_order(core, order_by_size_and_length(core), Fit::kFirst);
  Layout other = place_in_order(core, order_by_heat(core, 0.05), Fit::kFirst);
  if (other.top < best.top) best = std::move(other);
  const std::uint64_t goal = load_bound(core);
  std::vector<Portion> portions = split_in_time(core);
  std::vector<Pursuit> pursuits;
  pursuits.reserve(portions.size());
  for (Portion& portion : portions) pursuits.emplace_back(std::move(portion), best, true);
  while (work < limits.work && !limits.interrupt.out_of_time()) {
    Pursuit* next = &pursuits.front();
    for (Pursuit& each : pursuits) {
      if (each.best().top > next->best().top) next = &each;
    }
    if (next->best().top <= std::max(goal, next->lower_bound())) break;
    const std::uint64_t turn = 10 * (600 + 2 * next->portion().items.size());
    const std::uint64_t spent = next->search(
        {goal, true, std::min(turn, limits.work - work), limits.seed, limits.interrupt}, crew.size(), [] {});
    if (spent == 0) break;
    work += spent;
  }
  for (const Pursuit& each : pursuits) {
    for (std::size_t i = 0; i < each.portion().items.size(); ++i) {
      best.offsets[each.portion().items[i]] = each.best().offsets[i];
    }
  }
  best.top = top_of(core, best.offsets);
  return best;
}

}  // namespace

Improvement place_around_core(const Model& model, const CoreShape& shape, CoreSearch search, std::size_t fewest,
                              const Layout& known, const ImprovementLimits& limits, Crew& crew) {
  Improvement result{{{}, kNowhere}, 0};
  std::vector<std::uint32_t> items = core_items(model, shape);
  const bool restarts = search == CoreSearch::kRestarts;
  if (items.empty() || items.size() < fewest || items.size() > (restarts ? kMostRestarted : kMostDescended))
    return result;
  Portion core = portion_of(model, std::move(items));
  if (!restarts && overlapping_pairs(core.model) > kMostCorePairs) return result;
  coarsen(core.model, load_bound(model));
  // A node costs more the more items there are.
  const std::uint64_t cost = restarts ? 1 + core.items.size() / kUsual : 1;
  ImprovementLimits pack_limits = limits;
  pack_limits.work = limits.work / cost;
  if (limits.interrupt.deadline) {  // the rest has to be placed as well, and others want their turn
    const Clock::time_point now = Clock::now();
    const auto left = std::max(now, *limits.interrupt.deadline) - now;
    pack_limits.interrupt.deadline = now + (restarts ? left / 3 : left * 4 / 5);
  }
  Layout packed;
  if (restarts) {
    packed = pack(core.model, pack_limits, crew, result.work);
  } else {
    Layout start =
        core.layout_of(known);  // sizes were rounded up, so it may overlap here and there: only its top counts
    const std::uint64_t top = start.top;
    Improvement found = improve_by_descents(core.model, std::move(start), pack_limits, crew);
    result.work = found.work;
    if (found.best.top >= top) return result;
    packed = std::move(found.best);
  }
  result.work *= cost;
  Placer placer(model);
  Layout layout{std::vector<std::uint64_t>(model.items.size(), kNowhere), 0};
  for (std::size_t i = 0; i < core.items.size(); ++i) {
    layout.offsets[core.items[i]] = packed.offsets[i];
    placer.put(core.items[i], packed.offsets[i]);
  }
  std::size_t count = 0;
  for (const std::uint32_t item : order_by_size(model)) {
    if (layout.offsets[item] != kNowhere) continue;
    if ((++count & 255) == 0 && limits.interrupt.requested()) return result;
    layout.offsets[item] = placer.find(item, Fit::kBest);
    placer.put(item, layout.offsets[item]);
  }
  layout.top = top_of(model, layout.offsets);
  result.best = std::move(layout);
  result.work += limits.round;
  return result;
}

}  // namespace berth::internal::planner
