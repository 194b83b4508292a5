#include "plan/placement/strategies.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "plan/placement/bounds.h"
#include "plan/placement/placer.h"

namespace berth::internal::planner {
namespace {

constexpr StrategyInfo kInfo[] = {
    {"size_first_fit", "TFLite Micro", "largest first, each at the lowest gap that is free during its life"},
    {"smallest_gap", "TFLite", "largest first, each in the smallest gap that is free during its life"},
    {"xla_spatial", "XLA", "largest first, then longest-lived, each in the smallest free gap"},
    {"xla_temporal", "XLA", "longest-lived first, then largest, each in the smallest free gap"},
    {"breadth", "TFLite", "level by level from the fullest, the largest of each first, smallest free gap"},
    {"online_best_fit", "ggml, ONNX Runtime", "as they come to life, each in the smallest hole of a free list"},
    {"hill_climb", "TVM, Vela", "first fit in an order that random exchanges near the top improve"},
};
static_assert(std::size(kInfo) == std::size(kStrategies));

std::vector<std::uint32_t> all_items(const Model& model) {
  std::vector<std::uint32_t> order(model.items.size());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Items by ascending key, equal ones by index. Keys are made once: looking them up from within the sort would miss the
// cache at every comparison when there are many items.
template <class Key>
std::vector<std::uint32_t> sorted_by(const Model& model, Key key) {
  std::vector<std::pair<decltype(key(model.items[0])), std::uint32_t>> keyed;
  keyed.reserve(model.items.size());
  for (std::uint32_t i = 0; i < model.items.size(); ++i) keyed.emplace_back(key(model.items[i]), i);
  std::sort(keyed.begin(), keyed.end());
  std::vector<std::uint32_t> order;
  order.reserve(keyed.size());
  for (const auto& entry : keyed) order.push_back(entry.second);
  return order;
}

std::uint64_t length(const Item& item) noexcept {
  return static_cast<std::uint64_t>(item.last - item.first);
}

// The fullest section of any range, the first of equals. O(sections) to make, O(log sections) to ask.
class FullestSection {
 public:
  explicit FullestSection(const std::vector<std::uint64_t>& loads)
      : loads_(loads), size_(loads.size()), tree_(2 * size_) {
    for (std::size_t i = 0; i < size_; ++i) tree_[size_ + i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = size_; i-- > 1;) tree_[i] = fuller(tree_[2 * i], tree_[2 * i + 1]);
  }
  std::uint32_t of(std::size_t first, std::size_t last) const {
    auto best = static_cast<std::uint32_t>(first);
    for (first += size_, last += size_; first < last; first /= 2, last /= 2) {
      if (first & 1) best = fuller(best, tree_[first++]);
      if (last & 1) best = fuller(best, tree_[--last]);
    }
    return best;
  }

 private:
  std::uint32_t fuller(std::uint32_t a, std::uint32_t b) const {
    if (loads_[a] != loads_[b]) return loads_[a] > loads_[b] ? a : b;
    return std::min(a, b);
  }
  const std::vector<std::uint64_t>& loads_;
  std::size_t size_;
  std::vector<std::uint32_t> tree_;
};

}  // namespace

std::string_view strategy_name(Strategy strategy) noexcept {
  return kInfo[static_cast<std::size_t>(strategy)].name;
}

std::vector<std::uint32_t> order_by_size(const Model& model) {
  return sorted_by(model, [](const Item& it) { return std::tuple(~it.height, it.start); });
}

std::vector<std::uint32_t> order_by_duration(const Model& model) {
  return sorted_by(model, [](const Item& it) { return std::tuple(~length(it), ~it.height); });
}

std::vector<std::uint32_t> order_by_area(const Model& model) {
  return sorted_by(model,
                   [](const Item& it) { return -static_cast<double>(it.height) * static_cast<double>(length(it)); });
}

std::vector<std::uint32_t> order_by_start(const Model& model) {
  return sorted_by(model, [](const Item& it) { return it.start; });
}

std::vector<std::uint32_t> fullest_sections(const Model& model, const std::vector<std::uint64_t>& loads) {
  const FullestSection fullest(loads);
  std::vector<std::uint32_t> section(model.items.size());
  for (std::size_t i = 0; i < section.size(); ++i) {
    section[i] =
        fullest.of(static_cast<std::size_t>(model.items[i].first), static_cast<std::size_t>(model.items[i].last));
  }
  return section;
}

std::vector<std::uint32_t> order_by_breadth(const Model& model) {
  const std::vector<std::uint64_t> loads = section_loads(model);
  const std::vector<std::uint32_t> section = fullest_sections(model, loads);
  std::vector<std::uint32_t> order = all_items(model);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(~loads[section[a]], section[a], ~model.items[a].height) <
           std::tuple(~loads[section[b]], section[b], ~model.items[b].height);
  });
  return order;
}

std::vector<std::uint32_t> order_by_heat(const Model& model, double depth) {
  const std::vector<std::uint64_t> loads = section_loads(model);
  const auto peak = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  std::vector<std::uint32_t> hot_before(loads.size() + 1, 0);
  for (std::size_t s = 0; s < loads.size(); ++s) {
    hot_before[s + 1] = hot_before[s] + (static_cast<double>(loads[s]) >= (1.0 - depth) * peak ? 1 : 0);
  }
  return sorted_by(model, [&](const Item& it) {
    const bool hot = hot_before[static_cast<std::size_t>(it.last)] > hot_before[static_cast<std::size_t>(it.first)];
    return std::tuple(!hot, hot ? ~length(it) : 0, ~it.height);
  });
}

std::vector<std::uint32_t> order_by_size_and_length(const Model& model) {
  return sorted_by(model, [](const Item& it) {
    return -static_cast<double>(it.height) * std::sqrt(static_cast<double>(length(it)));
  });
}

std::uint64_t hill_climb_rounds(const Model& model) {
  const std::uint64_t round = model.items.size() + overlapping_pairs(model);
  return std::clamp<std::uint64_t>(20'000'000 / (round + 1), 1, 500);
}

std::uint64_t overlapping_pairs(const Model& model) {
  std::vector<std::uint64_t> begun(static_cast<std::size_t>(model.sections) + 1, 0), ended(begun);
  for (const Item& item : model.items) {
    ++begun[static_cast<std::size_t>(item.first) + 1];  // begun[s]: items that begin before section s
    ++ended[static_cast<std::size_t>(item.last)];       // ended[s]: items that end at or before section s
  }
  for (std::size_t s = 1; s < begun.size(); ++s) {
    begun[s] += begun[s - 1];
    ended[s] += ended[s - 1];
  }
  std::uint64_t twice = 0;
  for (const Item& item : model.items) {
    twice += begun[static_cast<std::size_t>(item.last)] - ended[static_cast<std::size_t>(item.first)] - 1;
  }
  return twice / 2;
}

Layout run_strategy(const Model& model, Strategy strategy, std::uint64_t seed, const Interrupt* interrupt) {
  switch (strategy) {
    case Strategy::kSizeFirstFit: return place_in_order(model, order_by_size(model), Fit::kFirst, interrupt);
    case Strategy::kSmallestGap: return place_in_order(model, order_by_size(model), Fit::kBest, interrupt);
    case Strategy::kXlaSpatial: {
      const auto order = sorted_by(model, [](const Item& it) { return std::tuple(~it.height, ~length(it)); });
      return place_in_order(model, order, Fit::kBest, interrupt);
    }
    case Strategy::kXlaTemporal: return place_in_order(model, order_by_duration(model), Fit::kBest, interrupt);
    case Strategy::kBreadth: return place_in_order(model, order_by_breadth(model), Fit::kBest, interrupt);
    case Strategy::kOnlineBestFit: {
      const bool simple =
          model.space.plain() && !model.has_fixed && model.alignment == 1 && model.parts.size() == model.items.size();
      return simple ? online_best_fit(model) : place_in_order(model, order_by_start(model), Fit::kBest, interrupt);
    }
    case Strategy::kHillClimb: return hill_climb(model, seed, hill_climb_rounds(model), interrupt);
  }
  return {};
}

}  // namespace berth::internal::planner

namespace berth {

using namespace internal;

std::span<const StrategyInfo> strategies() noexcept {
  return planner::kInfo;
}

}  // namespace berth
