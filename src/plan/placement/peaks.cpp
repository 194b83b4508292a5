#include "plan/placement/peaks.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "plan/placement/bounds.h"
#include "plan/placement/placer.h"
#include "plan/placement/random.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::size_t kMostWindows = 64;  // in a round: what reaches over many of them is looked at once for each
constexpr std::size_t kFewTasks = 4;      // where there are fewer windows, each is tried in several ways at once
constexpr int kIdleRounds = 12;           // rounds in turn that may lower nothing

// A stretch of time whose items are placed anew.
struct Window {
  std::int32_t first = 0, last = 0;
  std::uint64_t top = 0;                // of what lives inside
  std::vector<std::uint32_t> inside;    // items that live in it from begin to end
  std::vector<std::uint32_t> crossing;  // items that reach into it: they stay where they are
};

// One way to place a window's items, and what came of it. The larger an item, the longer it lives and the fuller it is
// around it, the earlier it is placed.
struct Trial {
  std::size_t window = 0;
  double power = 0.5;            // with which duration counts
  double heat = 20;              // with which the highest load of the item's life counts
  std::uint64_t top = kNowhere;  // kNowhere if it was no better
  std::vector<std::uint32_t> order;
  std::vector<std::uint64_t> offsets;  // in that order
};

class Peaks {
 public:
  Peaks(const Model& model, const ImprovementLimits& limits)
      : model_(model), limits_(limits), loads_(section_loads(model)) {
    std::uint64_t total = 0;
    for (const Item& item : model.items) total += static_cast<std::uint64_t>(item.last - item.first);
    const std::vector<std::uint32_t> fullest = fullest_sections(model, loads_);
    heat_.reserve(fullest.size());
    for (const std::uint32_t section : fullest) heat_.push_back(std::log(static_cast<float>(loads_[section])));
    mean_ = static_cast<double>(total) / static_cast<double>(std::max<std::size_t>(1, model.items.size()));
  }

  // The windows around all that ends above the lid, in order of time. Where they would be too many, only around the
  // highest of it.
  std::vector<Window> windows(const Layout& layout, std::uint64_t lid, double margin) const {
    for (;;) {
      std::vector<Window> found = windows_above(layout, lid, margin);
      if (found.size() <= kMostWindows) {
        fill(layout, found);
        return found;
      }
      if (layout.top - lid < 2) margin *= 2;  // all are as high: let them grow together
      lid += (layout.top - lid) / 2;
    }
  }

  void run(const Window& window, const Layout& layout, Trial& trial) const {
    trial.order = window.inside;
    std::vector<std::pair<double, std::uint32_t>> keys;
    keys.reserve(window.inside.size());
    for (const std::uint32_t item : window.inside) {
      const Item& it = model_.items[item];
      const auto length = static_cast<double>(it.last - it.first);
      const double size = std::log(static_cast<double>(it.height)) + trial.power * std::log(length);
      keys.emplace_back(-size - trial.heat * static_cast<double>(heat_[item]), item);
    }
    std::sort(keys.begin(), keys.end());
    Placer placer(model_);
    for (const std::uint32_t item : window.crossing) placer.put(item, layout.offsets[item]);
    trial.offsets.reserve(keys.size());
    std::uint64_t top = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if ((i & 255) == 255 && limits_.interrupt.requested()) return;
      const std::uint32_t item = trial.order[i] = keys[i].second;
      const std::uint64_t offset = placer.find(item, Fit::kFirst);
      if (offset == kNowhere || offset + model_.items[item].height >= window.top) return;
      placer.put(item, offset);
      trial.offsets.push_back(offset);
      top = std::max(top, offset + model_.items[item].height);
    }
    trial.top = top;
  }

 private:
  // Each reaches from what is above the lid for `margin` mean durations to both sides, and then to where least is alive
  // within as much again.
  std::vector<Window> windows_above(const Layout& layout, std::uint64_t lid, double margin) const {
    const auto reach = static_cast<std::int32_t>(std::clamp(mean_ * margin, 1.0, static_cast<double>(model_.sections)));
    std::vector<std::pair<std::int32_t, std::int32_t>> high;
    for (std::size_t i = 0; i < layout.offsets.size(); ++i) {
      const Item& it = model_.items[i];
      if (layout.offsets[i] + it.height > lid) high.emplace_back(it.first, it.last);
    }
    std::sort(high.begin(), high.end());
    std::vector<Window> found;
    for (const auto& [first, last] : high) {
      const std::int32_t from = std::max(0, first - reach), until = std::min(model_.sections, last + reach);
      if (!found.empty() && from <= found.back().last) {
        found.back().last = std::max(found.back().last, until);
      } else {
        found.push_back({from, until, 0, {}, {}});
      }
    }
    std::vector<Window> merged;
    for (Window& window : found) {
      if (window.first > 0) window.first = quietest(window.first - reach, window.first + 1);
      if (window.last < model_.sections) window.last = quietest(window.last, window.last + reach);
      if (!merged.empty() && window.first < merged.back().last) {
        merged.back().last = std::max(merged.back().last, window.last);
      } else {
        merged.push_back(std::move(window));
      }
    }
    return merged;
  }

  std::int32_t quietest(std::int32_t first, std::int32_t last) const {
    const auto from = loads_.begin() + std::max(0, first), until = loads_.begin() + std::min(model_.sections, last);
    return static_cast<std::int32_t>(std::min_element(from, until) - loads_.begin());
  }

  void fill(const Layout& layout, std::vector<Window>& windows) const {
    for (std::uint32_t i = 0; i < model_.items.size(); ++i) {
      const Item& it = model_.items[i];
      auto window = std::partition_point(windows.begin(), windows.end(),
                                         [&](const Window& other) { return other.last <= it.first; });
      for (; window != windows.end() && window->first < it.last; ++window) {
        if (window->first <= it.first && it.last <= window->last) {
          window->inside.push_back(i);
          window->top = std::max(window->top, layout.offsets[i] + it.height);
        } else {
          window->crossing.push_back(i);
        }
      }
    }
  }

  const Model& model_;
  const ImprovementLimits& limits_;
  const std::vector<std::uint64_t> loads_;
  std::vector<float> heat_;  // of each item: logarithm of the highest load of its life
  double mean_ = 1;          // duration of an item in sections
};

}  // namespace

Improvement lower_peaks(const Model& model, Layout start, const ImprovementLimits& limits, Crew& crew,
                        const ImprovementProgress& progress) {
  Improvement result{std::move(start), 0};
  const Peaks peaks(model, limits);
  double share = 0.5;  // of what is above the goal, the part that the round leaves alone
  int idle = 0;
  for (std::uint64_t round = 0; result.best.top > limits.goal && result.work < limits.work && idle < kIdleRounds;
       ++round) {
    if (limits.interrupt.out_of_time()) break;
    Random random(limits.seed, round);
    const double above = static_cast<double>(result.best.top - limits.goal);
    const std::uint64_t lid = limits.goal + static_cast<std::uint64_t>(share * above);
    const std::vector<Window> windows =
        peaks.windows(result.best, std::min(lid, result.best.top - 1), round == 0 ? 2.0 : 1.0 + 2.0 * random.unit());
    std::vector<Trial> trials;
    for (std::size_t w = 0; w < windows.size(); ++w) {
      for (std::size_t i = 0; i == 0 || i * windows.size() < kFewTasks; ++i) {
        Trial trial;
        trial.window = w;
        if (round > 0 || i > 0) {
          trial.power = 0.3 + 0.4 * random.unit();
          trial.heat = 10 + 50 * random.unit();
        }
        trials.push_back(std::move(trial));
        result.work += 1 + static_cast<std::uint64_t>(static_cast<double>(limits.round) *
                                                      static_cast<double>(windows[w].inside.size()) /
                                                      static_cast<double>(model.items.size()));
      }
    }
    std::atomic<std::size_t> next{0};
    crew.run([&](unsigned) {
      for (std::size_t i; (i = next.fetch_add(1)) < trials.size();) {
        peaks.run(windows[trials[i].window], result.best, trials[i]);
      }
    });
    std::vector<const Trial*> chosen(windows.size(), nullptr);
    for (const Trial& trial : trials) {
      const Trial*& best = chosen[trial.window];
      if (trial.top != kNowhere && (!best || trial.top < best->top)) best = &trial;
    }
    for (const Trial* trial : chosen) {
      if (!trial) continue;
      for (std::size_t i = 0; i < trial->order.size(); ++i) result.best.offsets[trial->order[i]] = trial->offsets[i];
    }
    const std::uint64_t before = result.best.top;
    result.best.top = top_of(model, result.best.offsets);
    idle = result.best.top < before ? 0 : idle + 1;
    share = result.best.top <= lid ? 0.5 : (1.0 + share) / 2;
    if (progress && result.best.top < before) progress(result);
  }
  return result;
}

}  // namespace berth::internal::planner
