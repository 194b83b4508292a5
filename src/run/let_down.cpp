#include "run/let_down.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/round_up.h"

namespace berth::internal::replay {
namespace {

// The height that is reached at each level. Only ever raised, by whole ranges to one new height above all of it.
class Skyline {
 public:
  explicit Skyline(std::size_t levels) : leaves_(std::bit_ceil(std::max<std::size_t>(levels, 1))) {
    highest_.resize(2 * leaves_);
    flat_.resize(2 * leaves_);
  }

  std::uint64_t highest(std::size_t begin, std::size_t end) const { return highest(1, 0, leaves_, begin, end); }
  // Requires: height is at least highest(begin, end).
  void raise(std::size_t begin, std::size_t end, std::uint64_t height) { raise(1, 0, leaves_, begin, end, height); }

 private:
  // highest_ is the highest height below a node; flat_ is the last height to which all of a node was raised, which is
  // at least as high as anything below it was then.
  std::uint64_t highest(std::size_t node, std::size_t low, std::size_t high, std::size_t begin, std::size_t end) const {
    if (begin <= low && high <= end) return highest_[node];
    const std::size_t middle = (low + high) / 2;
    std::uint64_t result = flat_[node];
    if (begin < middle) result = std::max(result, highest(2 * node, low, middle, begin, end));
    if (end > middle) result = std::max(result, highest(2 * node + 1, middle, high, begin, end));
    return result;
  }
  void raise(std::size_t node, std::size_t low, std::size_t high, std::size_t begin, std::size_t end,
             std::uint64_t height) {
    highest_[node] = std::max(highest_[node], height);
    if (begin <= low && high <= end) {
      flat_[node] = height;
      return;
    }
    const std::size_t middle = (low + high) / 2;
    if (begin < middle) raise(2 * node, low, middle, begin, end, height);
    if (end > middle) raise(2 * node + 1, middle, high, begin, end, height);
  }

  std::size_t leaves_;
  std::vector<std::uint64_t> highest_, flat_;
};

std::uint64_t largest_load(const PlanProblem& problem, std::size_t levels) {
  std::vector<std::uint64_t> begins(levels + 1), ends(levels + 1);
  for (const Lifetime& node : problem.lifetimes) {
    begins[static_cast<std::size_t>(node.first)] += node.bytes;
    ends[static_cast<std::size_t>(node.last)] += node.bytes;
  }
  std::uint64_t load = 0, largest = 0;
  for (std::size_t level = 0; level <= levels; ++level) {
    load -= ends[level];
    load += begins[level];
    largest = std::max(largest, load);
  }
  return largest;
}

std::uint64_t place(const PlanProblem& problem, std::size_t levels, std::span<const std::uint32_t> order,
                    std::vector<std::uint64_t>& offsets) {
  Skyline skyline(levels);
  std::vector<bool> placed(problem.lifetimes.size());
  std::uint64_t size = 0;
  const auto put = [&](std::uint32_t n) {
    const Lifetime& node = problem.lifetimes[n];
    if (node.bytes == 0 || placed[n]) return;
    placed[n] = true;
    const auto first = static_cast<std::size_t>(node.first), last = static_cast<std::size_t>(node.last);
    offsets[n] = round_up(skyline.highest(first, last), std::max(node.alignment, problem.alignment));
    skyline.raise(first, last, offsets[n] + node.bytes);
    size = std::max(size, offsets[n] + node.bytes);
  };
  for (const std::uint32_t n : order) put(n);
  for (std::uint32_t n = 0; n < problem.lifetimes.size(); ++n) put(n);
  return size;
}

}  // namespace

std::vector<std::uint32_t> order_of_offsets(const MemoryPlan& plan) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < plan.slots.size(); ++i)
    if (plan.has(i)) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return plan.slots[a].offset < plan.slots[b].offset; });
  return order;
}

MemoryPlan let_down(const PlanProblem& problem, std::span<const std::vector<std::uint32_t>> orders) {
  const std::size_t n = problem.lifetimes.size();
  std::size_t levels = n;
  for (const Lifetime& node : problem.lifetimes) levels = std::max(levels, static_cast<std::size_t>(node.last));
  std::vector<std::uint64_t> offsets(n), best(n);
  MemoryPlan plan;
  plan.lower_bound = largest_load(problem, levels);
  // The order of the requests themselves is one too, for a run with no plan to follow.
  plan.size = place(problem, levels, {}, best);
  for (const std::vector<std::uint32_t>& order : orders) {
    if (plan.size == plan.lower_bound) break;
    const std::uint64_t size = place(problem, levels, order, offsets);
    if (size >= plan.size) continue;
    plan.size = size;
    best.swap(offsets);
  }
  plan.slots.resize(n);
  for (std::size_t i = 0; i < n; ++i)
    if (problem.lifetimes[i].bytes != 0)
      plan.slots[i] = {.offset = best[i], .bytes = problem.lifetimes[i].bytes, .block = 0};
  if (plan.size != 0) plan.blocks.push_back({.bytes = plan.size});
  plan.optimal = plan.size == plan.lower_bound;
  plan.strategy = "let_down";
  plan.fingerprint = fingerprint(problem);
  return plan;
}

}  // namespace berth::internal::replay
