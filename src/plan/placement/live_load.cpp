#include "plan/placement/live_load.h"

#include <algorithm>
#include <bit>

namespace berth::internal::planner {
namespace {

constexpr int kShift = 3;  // ranks that are kept together

}  // namespace

LiveLoad::LiveLoad(std::vector<std::int64_t> levels) : known_(std::move(levels)) {
  std::sort(known_.begin(), known_.end());
  known_.erase(std::unique(known_.begin(), known_.end()), known_.end());
  const std::size_t leaves = std::bit_ceil((known_.size() >> kShift) + 1);
  steps_.resize(leaves);
  tree_.resize(2 * leaves);
}

std::int32_t LiveLoad::rank(std::int64_t level) const noexcept {
  return static_cast<std::int32_t>(std::upper_bound(known_.begin(), known_.end(), level) - known_.begin());
}

void LiveLoad::add(LevelRange levels, std::uint64_t bytes) {
  change(levels.first, static_cast<std::int64_t>(bytes), true);
  change(levels.last, -static_cast<std::int64_t>(bytes), true);
}

void LiveLoad::remove(LevelRange levels, std::uint64_t bytes) {
  change(levels.first, -static_cast<std::int64_t>(bytes), false);
  change(levels.last, static_cast<std::int64_t>(bytes), false);
}

std::uint64_t LiveLoad::peak() const noexcept {
  return static_cast<std::uint64_t>(tree_[1].high);
}

void LiveLoad::change(std::int64_t level, std::int64_t by, bool more) {
  const std::size_t leaf = static_cast<std::size_t>(rank(level)) >> kShift;
  std::vector<Step>& steps = steps_[leaf];
  auto at = std::lower_bound(steps.begin(), steps.end(), level,
                             [](const Step& step, std::int64_t value) { return step.level < value; });
  if (at == steps.end() || at->level != level) at = steps.insert(at, {level, 0, 0});
  at->change += by;
  more ? ++at->uses : --at->uses;
  if (at->uses == 0) steps.erase(at);
  Stretch all;
  for (const Step& step : steps) {
    all.sum += step.change;
    all.high = std::max(all.high, all.sum);
  }
  std::size_t i = steps_.size() + leaf;
  tree_[i] = all;
  for (i /= 2; i > 0; i /= 2) {
    const Stretch &left = tree_[2 * i], &right = tree_[2 * i + 1];
    tree_[i] = {left.sum + right.sum, std::max(left.high, left.sum + right.high)};
  }
}

}  // namespace berth::internal::planner
