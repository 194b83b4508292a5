#include "plan/graph/lifetimes.h"

#include <algorithm>

namespace berth::internal::graphs {

OrderedProblem problem_of(const MemoryGraph& graph, const CheckedGraph& checked, std::span<const std::uint32_t> order) {
  const auto end = static_cast<std::int64_t>(std::max<std::size_t>(1, order.size()));
  std::vector<std::int64_t> position(order.size());
  for (std::size_t at = 0; at < order.size(); ++at) position[order[at]] = static_cast<std::int64_t>(at);

  // Of each stored value: from its first writer to its last user.
  const StepGraph& steps = checked.steps;
  std::vector<LevelRange> lives(steps.stored.size());
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const Stored& it = steps.stored[i];
    lives[i] = {it.input ? 0 : end - 1, it.kept ? end : 1};
    for (const std::uint32_t step : steps.writers[i]) lives[i].first = std::min(lives[i].first, position[step]);
    for (const std::uint32_t step : steps.users[i]) lives[i].last = std::max(lives[i].last, position[step] + 1);
  }

  OrderedProblem out;
  out.problem.alignment = graph.alignment;
  out.problem.lifetimes.reserve(graph.values.size());
  for (std::uint32_t value = 0; value < graph.values.size(); ++value) {
    const GraphValue& it = graph.values[value];
    Lifetime life;
    life.bytes = it.bytes;
    life.alignment = it.alignment;
    life.alias = it.alias;
    life.label = it.label;
    if (const std::uint32_t stored = checked.stored[checked.root[value]]; stored != kNone) {
      life.first = lives[stored].first;
      life.last = lives[stored].last;
    }
    const std::uint32_t writer = checked.writer[value];
    out.nodes.push_back({value, writer == kNone ? kNone : static_cast<std::uint32_t>(position[writer])});
    out.problem.lifetimes.push_back(std::move(life));
  }
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step) {
    for (const InPlace& pair : graph.steps[step].in_place) {
      const std::uint32_t donor = checked.stored[checked.root[pair.read]],
                          heir = checked.stored[checked.root[pair.write]];
      const bool allowed = std::any_of(steps.takeovers[step].begin(), steps.takeovers[step].end(),
                                       [&](const Takeover& it) { return it.donor == donor && it.heir == heir; });
      const bool now = allowed && lives[donor].last == position[step] + 1 && lives[heir].first == position[step];
      if (now && !steps.stored[donor].kept) out.problem.lifetimes[pair.write].reuse_in_place = pair.read;
    }
    if (graph.steps[step].scratch == 0) continue;
    Lifetime life;
    life.bytes = graph.steps[step].scratch;
    life.first = position[step];
    life.last = position[step] + 1;
    out.nodes.push_back({kNoNode, static_cast<std::uint32_t>(position[step])});
    out.problem.lifetimes.push_back(std::move(life));
  }
  return out;
}

}  // namespace berth::internal::graphs
