#include "plan/graph/recompute.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace berth::internal::graphs {
namespace {

constexpr std::size_t kTrials = 12;  // at one peak

// Lower is better: first the peak, then how long it lasts.
std::pair<std::uint64_t, std::size_t> height(const std::vector<std::uint64_t>& needs) {
  const std::uint64_t most = needs.empty() ? 0 : *std::max_element(needs.begin(), needs.end());
  return {most, static_cast<std::size_t>(std::count(needs.begin(), needs.end(), most))};
}

struct Candidate {
  std::uint32_t step = 0;   // that would run again
  std::uint32_t value = 0;  // that it writes
  std::size_t before = 0;   // position
  double rate = 0;          // bytes for a second
};

class Recomputing {
 public:
  Recomputing(const MemoryGraph& graph, const std::vector<std::uint32_t>& order) {
    now_.graph = graph;
    now_.order = order;
    now_.step_of.resize(graph.steps.size());
    now_.value_of.resize(graph.values.size());
    std::iota(now_.step_of.begin(), now_.step_of.end(), 0u);
    std::iota(now_.value_of.begin(), now_.value_of.end(), 0u);
  }

  Expanded run(double seconds, SearchBudget& budget) {
    for (bool lowered = true; lowered;) {
      lowered = false;
      const Result<CheckedGraph> checked = check_graph(now_.graph);
      if (!checked) break;
      const std::vector<std::uint64_t> needs = needs_of(checked->steps, now_.order);
      const auto at = static_cast<std::size_t>(std::max_element(needs.begin(), needs.end()) - needs.begin());
      for (const Candidate& candidate : candidates(*checked, at, seconds - now_.seconds)) {
        const std::uint64_t cost = 2 * now_.graph.steps.size() + 1;
        if (budget.work < cost || (budget.stop && budget.stop())) return std::move(now_);
        budget.work -= cost;
        Expanded tried = with(candidate);
        const Result<CheckedGraph> its = check_graph(tried.graph);
        if (!its || height(needs_of(its->steps, tried.order)) >= height(needs)) continue;
        now_ = std::move(tried);
        lowered = true;
        break;
      }
    }
    return std::move(now_);
  }

 private:
  // What is live at `at` only because later steps use it, and could be computed again before they do.
  std::vector<Candidate> candidates(const CheckedGraph& checked, std::size_t at, double seconds) const {
    std::vector<std::size_t> position(now_.order.size());
    for (std::size_t i = 0; i < now_.order.size(); ++i) position[now_.order[i]] = i;
    std::vector<bool> has_windows(now_.graph.values.size(), false);
    for (const GraphValue& value : now_.graph.values)
      if (value.alias) has_windows[value.alias->node] = true;
    std::vector<Candidate> out;
    for (std::uint32_t value = 0; value < now_.graph.values.size(); ++value) {
      const std::uint32_t stored = checked.stored[value], writer = checked.writer[value];
      if (stored == kNone || writer == kNone || has_windows[value] || checked.steps.stored[stored].kept) continue;
      const GraphStep& step = now_.graph.steps[writer];
      if (!step.seconds || *step.seconds > seconds || step.writes.size() != 1 || position[writer] >= at) continue;
      std::size_t next = now_.order.size();
      bool used_here = false;
      for (const std::uint32_t user : checked.steps.users[stored]) {
        used_here = used_here || position[user] == at;
        if (position[user] > at) next = std::min(next, position[user]);
      }
      if (used_here || next == now_.order.size()) continue;
      out.push_back({writer, value, next,
                     static_cast<double>(checked.steps.stored[stored].bytes) / std::max(*step.seconds, 1e-12)});
    }
    std::stable_sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.rate > b.rate; });
    if (out.size() > kTrials) out.resize(kTrials);
    return out;
  }

  Expanded with(const Candidate& candidate) const {
    Expanded out = now_;
    const auto copy = static_cast<std::uint32_t>(out.graph.steps.size());
    const auto value = static_cast<std::uint32_t>(out.graph.values.size());
    out.graph.values.push_back(out.graph.values[candidate.value]);
    out.value_of.push_back(out.value_of[candidate.value]);
    for (std::size_t at = candidate.before; at < out.order.size(); ++at) {
      GraphStep& step = out.graph.steps[out.order[at]];
      std::replace(step.reads.begin(), step.reads.end(), candidate.value, value);
      for (InPlace& pair : step.in_place)
        if (pair.read == candidate.value) pair.read = value;
    }
    GraphStep again = out.graph.steps[candidate.step];
    again.writes = {value};
    again.in_place.clear();
    out.graph.steps.push_back(std::move(again));
    out.step_of.push_back(out.step_of[candidate.step]);
    out.order.insert(out.order.begin() + static_cast<std::ptrdiff_t>(candidate.before), copy);
    out.seconds += *out.graph.steps[candidate.step].seconds;
    return out;
  }

  Expanded now_;
};

}  // namespace

Expanded recompute(const MemoryGraph& graph, const std::vector<std::uint32_t>& order, double seconds,
                   SearchBudget& budget) {
  return Recomputing(graph, order).run(seconds, budget);
}

}  // namespace berth::internal::graphs
