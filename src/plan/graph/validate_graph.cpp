// The validator of plan_graph(). It simulates the order on the graph as it is given, and shares no code with the
// planner, so that a mistake there cannot hide here.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "berth/plan/plan_graph.h"

namespace berth {
namespace {

constexpr std::uint32_t kUnset = kNoNode;

class Validator {
 public:
  Validator(const MemoryGraph& graph, const GraphPlan& made) : graph_(graph), made_(made) {}

  GraphViolation run() {
    if (!find_roots()) return {GraphRule::kInvalidGraph};
    if (const GraphViolation broken = follow_order()) return broken;
    if (const GraphViolation broken = compare_nodes()) return broken;
    if (const Violation broken = validate(made_.problem, made_.plan))
      return {GraphRule::kWrongPlan, broken.node, broken};
    return check_figures();
  }

 private:
  // One value of one run of its step.
  struct Instance {
    std::int64_t first = 0;
    std::int64_t last = 0;
    bool read = false;
  };

  bool find_roots() {
    const std::size_t count = graph_.values.size();
    root_.resize(count);
    has_windows_.assign(count, false);
    writer_.assign(count, kUnset);
    for (std::uint32_t value = 0; value < count; ++value) {
      std::uint32_t at = value;
      std::size_t hops = 0;
      while (graph_.values[at].alias) {
        if (graph_.values[at].alias->node >= count || ++hops > count) return false;
        at = graph_.values[at].alias->node;
        has_windows_[at] = true;
      }
      root_[value] = at;
    }
    for (std::uint32_t step = 0; step < graph_.steps.size(); ++step) {
      const GraphStep& it = graph_.steps[step];
      for (const std::uint32_t value : it.reads)
        if (value >= count) return false;
      for (const std::uint32_t value : it.writes) {
        if (value >= count || writer_[value] != kUnset) return false;
        writer_[value] = step;
      }
      for (const std::uint32_t other : it.after)
        if (other >= graph_.steps.size()) return false;
    }
    return true;
  }

  // Whether writing `value` fills bytes, rather than making a view of what was there before.
  bool fills(std::uint32_t value) const {
    if (writer_[value] == kUnset) return false;
    const auto& reads = graph_.steps[writer_[value]].reads;
    return std::none_of(reads.begin(), reads.end(), [&](std::uint32_t other) { return root_[other] == root_[value]; });
  }

  // What must have been written before `value` can be read: itself, or what it is a window of.
  std::uint32_t source(std::uint32_t value) const {
    while (writer_[value] == kUnset && graph_.values[value].alias) value = graph_.values[value].alias->node;
    return value;
  }

  GraphViolation follow_order() {
    const auto end = static_cast<std::int64_t>(std::max<std::size_t>(1, made_.order.size()));
    std::vector<std::uint32_t> ran(graph_.steps.size(), kUnset);
    written_at_.assign(graph_.values.size(), kUnset);  // of each value: the position of its present instance
    repeated_ = 0;
    std::vector<bool> group_written(graph_.values.size(), false), group_read(graph_.values.size(), false),
        group_kept(graph_.values.size(), false);
    for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
      if (fills(value)) group_written[root_[value]] = true;
      if (graph_.values[value].keep) group_kept[root_[value]] = true;
    }
    std::vector<std::vector<std::uint32_t>> parts(graph_.values.size());  // of each root: who writes windows of it
    for (std::uint32_t value = 0; value < graph_.values.size(); ++value)
      if (fills(value)) parts[root_[value]].push_back(writer_[value]);
    for (const GraphStep& step : graph_.steps)
      for (const std::uint32_t value : step.reads) group_read[root_[value]] = true;
    for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
      if (root_[value] != value) continue;
      if (!group_read[value]) group_kept[value] = true;
      if (!group_written[value]) lives_[{value, kUnset}] = {0, group_kept[value] ? end : 1, false};
    }
    for (std::uint32_t at = 0; at < made_.order.size(); ++at) {
      const std::uint32_t step = made_.order[at];
      if (step >= graph_.steps.size()) return {GraphRule::kWrongOrder, at};
      const GraphStep& it = graph_.steps[step];
      if (ran[step] != kUnset) {
        if (!it.seconds) return {GraphRule::kMayNotRepeat, at};
        for (const std::uint32_t value : it.writes)
          if (graph_.values[value].alias || has_windows_[value] || group_kept[value])
            return {GraphRule::kMayNotRepeat, at};
        repeated_ += *it.seconds;
      }
      for (const std::uint32_t other : it.after)
        if (ran[other] == kUnset) return {GraphRule::kWrongOrder, at};
      for (const std::uint32_t value : it.reads) {
        const std::uint32_t from = source(value);
        if (writer_[from] != kUnset && written_at_[from] == kUnset) return {GraphRule::kWrongOrder, at};
        if (writer_[from] == kUnset)
          for (const std::uint32_t part : parts[root_[value]])
            if (ran[part] == kUnset && part != step) return {GraphRule::kWrongOrder, at};
        touch(root_[value], at, group_kept[root_[value]] ? end : at + 1);
      }
      ran[step] = at;
      for (const std::uint32_t value : it.writes) {
        written_at_[value] = at;
        const std::uint32_t root = root_[value];
        // A root with windows has one instance, which begins with whichever is written first.
        if (group_written[root] && (!has_windows_[root] || present_.count(root) == 0)) present_[root] = at;
        touch(root, at, group_kept[root] ? end : at + 1);
      }
    }
    for (std::uint32_t step = 0; step < graph_.steps.size(); ++step)
      if (ran[step] == kUnset) return {GraphRule::kWrongOrder, step};
    return {};
  }

  void touch(std::uint32_t root, std::int64_t at, std::int64_t last) {
    const auto present = present_.find(root);
    const std::uint32_t instance = present == present_.end() ? kUnset : present->second;
    const auto [life, fresh] = lives_.try_emplace({root, instance}, Instance{at, last, false});
    if (!fresh) life->second.last = std::max(life->second.last, last);
  }

  GraphViolation compare_nodes() {
    const auto& lifetimes = made_.problem.lifetimes;
    if (lifetimes.size() != made_.nodes.size()) return {GraphRule::kWrongNodes};
    if (made_.problem.capacity || !made_.problem.banks.empty() || made_.problem.max_block_bytes != 0)
      return {GraphRule::kWrongNodes};
    if (made_.problem.alignment < graph_.alignment) return {GraphRule::kWrongNodes};
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> places;  // value and position: lifetime
    std::vector<bool> scratch(made_.order.size(), false);
    std::size_t stored = 0;
    for (std::uint32_t i = 0; i < lifetimes.size(); ++i) {
      const Lifetime& life = lifetimes[i];
      const GraphNode& node = made_.nodes[i];
      const GraphViolation wrong{GraphRule::kWrongNodes, i};
      if (life.offset || life.pinned || !life.gaps.empty() || life.lane != lifetimes[0].lane || life.bank) return wrong;
      if (node.value == kNoNode) {
        if (node.at >= made_.order.size() || scratch[node.at] || life.alias || life.reuse_in_place) return wrong;
        scratch[node.at] = true;
        if (life.bytes != graph_.steps[made_.order[node.at]].scratch || life.bytes == 0) return wrong;
        if (life.first != node.at || life.last != std::int64_t{node.at} + 1) return wrong;
        continue;
      }
      if (node.value >= graph_.values.size() || !places.try_emplace({node.value, node.at}, i).second) return wrong;
      const GraphValue& value = graph_.values[node.value];
      if (life.bytes != value.bytes || life.alignment < value.alignment) return wrong;
      if (life.alias.has_value() != value.alias.has_value()) return wrong;
      if (value.alias) {
        if (life.alias->node >= lifetimes.size() || life.alias->offset != value.alias->offset) return wrong;
        if (made_.nodes[life.alias->node].value != value.alias->node) return wrong;
        if (life.reuse_in_place) return wrong;
        continue;  // the root stands for it
      }
      if (life.bytes == 0) continue;
      ++stored;
      const std::uint32_t at = has_windows_[node.value] ? begins_at(node.value) : node.at;
      const auto expected = lives_.find({node.value, at});
      if (expected == lives_.end() || expected->second.first != life.first || expected->second.last != life.last)
        return wrong;
      if (life.reuse_in_place && !may_take_over(i, *life.reuse_in_place)) return wrong;
    }
    const auto expected_count = std::count_if(
        lives_.begin(), lives_.end(), [&](const auto& life) { return graph_.values[life.first.first].bytes > 0; });
    if (static_cast<std::size_t>(expected_count) != stored) return {GraphRule::kWrongNodes};
    for (std::uint32_t at = 0; at < made_.order.size(); ++at)
      if (graph_.steps[made_.order[at]].scratch > 0 && !scratch[at]) return {GraphRule::kWrongNodes, at};
    for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
      const auto place = places.lower_bound({value, 0});
      if (place == places.end() || place->first.first != value) return {GraphRule::kWrongNodes, value};
    }
    return {};
  }

  std::uint32_t begins_at(std::uint32_t root) const {
    const auto found = present_.find(root);
    return found == present_.end() ? kUnset : found->second;
  }

  bool may_take_over(std::uint32_t node, std::uint32_t from) const {
    if (from >= made_.nodes.size() || made_.nodes[node].at >= made_.order.size()) return false;
    const GraphStep& step = graph_.steps[made_.order[made_.nodes[node].at]];
    return std::any_of(step.in_place.begin(), step.in_place.end(), [&](const InPlace& pair) {
      return pair.write == made_.nodes[node].value && pair.read == made_.nodes[from].value;
    });
  }

  GraphViolation check_figures() const {
    const GraphViolation wrong{GraphRule::kWrongFigures};
    if (made_.size != made_.plan.size || made_.optimal != (made_.size <= made_.lower_bound)) return wrong;
    if (std::abs(made_.recomputed_seconds - repeated_) > 1e-9 * (1 + repeated_)) return wrong;
    if (repeated_ == 0 && made_.order.size() == graph_.steps.size() && made_.lower_bound > made_.size) return wrong;
    return {};
  }

  const MemoryGraph& graph_;
  const GraphPlan& made_;
  std::vector<std::uint32_t> root_, writer_, written_at_;
  std::vector<bool> has_windows_;
  std::map<std::uint32_t, std::uint32_t> present_;  // of each root that was written: where its instance begins
  std::map<std::pair<std::uint32_t, std::uint32_t>, Instance> lives_;
  double repeated_ = 0;
};

}  // namespace

GraphViolation validate(const MemoryGraph& graph, const GraphPlan& plan) {
  return Validator(graph, plan).run();
}

std::string_view to_string(GraphRule rule) noexcept {
  switch (rule) {
    case GraphRule::kNone: return "None";
    case GraphRule::kInvalidGraph: return "InvalidGraph";
    case GraphRule::kWrongOrder: return "WrongOrder";
    case GraphRule::kMayNotRepeat: return "MayNotRepeat";
    case GraphRule::kWrongNodes: return "WrongNodes";
    case GraphRule::kWrongPlan: return "WrongPlan";
    case GraphRule::kWrongFigures: return "WrongFigures";
  }
  return "Unknown";
}

}  // namespace berth
