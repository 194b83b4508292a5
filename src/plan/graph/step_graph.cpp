#include "plan/graph/step_graph.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "base/try.h"

namespace berth::internal::graphs {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;
constexpr std::size_t kMostNodes = std::size_t{1} << 30;

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// Pairs of a step or a stored value, and what belongs to it.
struct Edges {
  Pairs before, next, writes, uses, writers, users;
};

void set_edges(StepGraph& graph, Edges& edges) {
  graph.before = Lists(graph.steps, edges.before);
  graph.next = Lists(graph.steps, edges.next);
  graph.writes = Lists(graph.steps, edges.writes);
  graph.uses = Lists(graph.steps, edges.uses);
  graph.writers = Lists(graph.stored.size(), edges.writers);
  graph.users = Lists(graph.stored.size(), edges.users);
}

template <class... Numbers>
Error invalid(const char* format, Numbers... numbers) {
  return Error(Code::kInvalidArgument, Layer::kPlan, format, numbers...);
}

Result<void> check_values(const MemoryGraph& graph) {
  const std::size_t count = graph.values.size();
  if (!std::has_single_bit(graph.alignment) || graph.alignment > kMostBytes)
    return invalid("the alignment {} of the graph is not a power of two up to 2^50", graph.alignment);
  if (count > kMostNodes || graph.steps.size() > kMostNodes)
    return invalid("{} values and {} steps are more than a graph can hold", count, graph.steps.size());
  for (std::size_t i = 0; i < count; ++i) {
    const GraphValue& value = graph.values[i];
    if (!std::has_single_bit(value.alignment) || value.alignment > kMostBytes)
      return invalid("value {}: alignment {} is not a power of two up to 2^50", i, value.alignment);
    if (!value.alias) continue;
    if (value.alias->node >= count)
      return invalid("value {}: alias of value {}, but there are {}", i, value.alias->node, count);
    const std::uint64_t bytes = graph.values[value.alias->node].bytes;
    if (value.alias->offset > bytes || value.bytes > bytes - value.alias->offset)
      return invalid("value {}: window at {} of {} bytes is outside the {} bytes it is an alias of", i,
                     value.alias->offset, value.bytes, bytes);
    if (value.alias->offset % value.alignment != 0)
      return invalid("value {}: alias offset {} is not a multiple of its alignment {}", i, value.alias->offset,
                     value.alignment);
  }
  return {};
}

Result<void> fold_windows(const MemoryGraph& graph, CheckedGraph& out) {
  const auto count = static_cast<std::uint32_t>(graph.values.size());
  out.root.assign(count, kNone);
  out.delta.assign(count, 0);
  std::vector<std::uint32_t> path;
  for (std::uint32_t value = 0; value < count; ++value) {
    std::uint32_t at = value;
    while (out.root[at] == kNone && graph.values[at].alias) {
      if (path.size() > count)
        return Error(Code::kCycle, Layer::kPlan, "value {}: its chain of aliases leads back to itself", value);
      path.push_back(at);
      at = graph.values[at].alias->node;
    }
    if (out.root[at] == kNone) out.root[at] = at;
    for (; !path.empty(); path.pop_back()) {
      const std::uint32_t window = path.back();
      out.root[window] = out.root[at];
      out.delta[window] = out.delta[at] + graph.values[window].alias->offset;
      at = window;
    }
  }
  return {};
}

// The step that must have run before `value` can be read, or kNone.
std::uint32_t maker_of(const MemoryGraph& graph, const CheckedGraph& checked, std::uint32_t value) {
  while (checked.writer[value] == kNone && graph.values[value].alias) value = graph.values[value].alias->node;
  return checked.writer[value];
}

Result<void> check_steps(const MemoryGraph& graph, CheckedGraph& out) {
  const std::size_t values = graph.values.size();
  out.writer.assign(values, kNone);
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step) {
    const GraphStep& it = graph.steps[step];
    for (const auto* list : {&it.reads, &it.writes})
      for (const std::uint32_t value : *list)
        if (value >= values) return invalid("step {} uses value {}, but there are {}", step, value, values);
    for (const std::uint32_t other : it.after)
      if (other >= graph.steps.size())
        return invalid("step {} comes after step {}, but there are {}", step, other, graph.steps.size());
    for (const std::uint32_t value : it.writes) {
      if (out.writer[value] != kNone)
        return invalid("value {} is written by step {} and by step {}; give each its own value", value,
                       out.writer[value], step);
      out.writer[value] = step;
    }
    if (it.seconds && !(*it.seconds >= 0 && *it.seconds < 1e18))
      return invalid("step {}: the time it takes is negative or not finite", step);
    for (std::size_t i = 0; i < it.in_place.size(); ++i) {
      const InPlace& pair = it.in_place[i];
      const bool known = std::find(it.writes.begin(), it.writes.end(), pair.write) != it.writes.end() &&
                         std::find(it.reads.begin(), it.reads.end(), pair.read) != it.reads.end();
      if (!known)
        return invalid(
            "step {}: value {} may take over value {}, but the step does not write the one and read the other", step,
            pair.write, pair.read);
      for (std::size_t k = 0; k < i; ++k)
        if (it.in_place[k].write == pair.write)
          return invalid("step {}: value {} may take over more than one value; name one", step, pair.write);
    }
  }
  return {};
}

Result<void> measure(const MemoryGraph& graph, CheckedGraph& out) {
  const std::uint64_t unit = graph.alignment;
  std::uint64_t sum = 0;
  const auto rounded = [&](std::uint64_t bytes) {
    const std::uint64_t up = (bytes + unit - 1) / unit * unit;
    out.slack = std::max(out.slack, up - bytes);
    return up;
  };
  const auto count = [&](std::uint64_t bytes) {
    if (bytes > kMostBytes || unit > kMostBytes || bytes + unit > kMostBytes - sum) return false;
    sum += bytes + unit;
    return true;
  };
  out.stored.assign(graph.values.size(), kNone);
  for (std::uint32_t value = 0; value < graph.values.size(); ++value) {
    if (out.root[value] != value || graph.values[value].bytes == 0) continue;
    if (!count(graph.values[value].bytes))
      return invalid("the values up to {} hold more than the {b} that a plan can hold", value, kMostBytes);
    out.stored[value] = static_cast<std::uint32_t>(out.steps.stored.size());
    out.steps.stored.push_back({rounded(graph.values[value].bytes), false, false});
  }
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step) {
    const std::uint64_t bytes = graph.steps[step].scratch;
    if (bytes > 0 && !count(bytes))
      return invalid("all values and the scratch of steps up to {} are more than the {b} that a plan can hold", step,
                     kMostBytes);
    out.steps.scratch.push_back(bytes == 0 ? 0 : rounded(bytes));
  }
  return {};
}

void connect(const MemoryGraph& graph, CheckedGraph& out) {
  StepGraph& steps = out.steps;
  steps.steps = graph.steps.size();
  Edges edges;
  auto& [before, next, writes, uses, writers, users] = edges;
  const auto depend = [&](std::uint32_t step, std::uint32_t on) {
    before.emplace_back(step, on);
    next.emplace_back(on, step);
  };
  // A step that reads a part of a value and writes another part, such as a reshape, makes a view: the value was there
  // before. Any other write fills it.
  std::vector<bool> fills(graph.values.size(), false);
  // Of each root that no step writes as a whole: the steps that fill parts of it.
  std::vector<std::vector<std::uint32_t>> part_writers(graph.values.size());
  for (std::uint32_t value = 0; value < graph.values.size(); ++value) {
    if (out.writer[value] == kNone) continue;
    const std::vector<std::uint32_t>& reads = graph.steps[out.writer[value]].reads;
    fills[value] = std::none_of(reads.begin(), reads.end(),
                                [&](std::uint32_t other) { return out.root[other] == out.root[value]; });
    if (fills[value] && out.writer[out.root[value]] == kNone)
      part_writers[out.root[value]].push_back(out.writer[value]);
  }
  std::vector<bool> read(graph.values.size(), false);
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step) {
    const GraphStep& it = graph.steps[step];
    for (const std::uint32_t value : it.reads) {
      read[value] = true;
      const std::uint32_t maker = maker_of(graph, out, value);
      if (maker != kNone) {
        depend(step, maker);
      } else {
        for (const std::uint32_t part : part_writers[out.root[value]])
          if (part != step) depend(step, part);
      }
      if (const std::uint32_t stored = out.stored[out.root[value]]; stored != kNone) {
        uses.emplace_back(step, stored);
        users.emplace_back(stored, step);
      }
    }
    for (const std::uint32_t value : it.writes) {
      const std::uint32_t stored = out.stored[out.root[value]];
      if (stored == kNone) continue;
      writes.emplace_back(step, stored);
      writers.emplace_back(stored, step);
      uses.emplace_back(step, stored);
      users.emplace_back(stored, step);
    }
    for (const std::uint32_t other : it.after) depend(step, other);
  }
  for (Stored& it : steps.stored) it = {it.bytes, true, true};
  for (std::uint32_t value = 0; value < graph.values.size(); ++value) {
    const std::uint32_t stored = out.stored[out.root[value]];
    if (stored == kNone) continue;
    if (read[value]) steps.stored[stored].kept = false;
    if (fills[value]) steps.stored[stored].input = false;
  }
  for (std::uint32_t value = 0; value < graph.values.size(); ++value) {
    const std::uint32_t stored = out.stored[out.root[value]];
    if (stored != kNone && graph.values[value].keep) steps.stored[stored].kept = true;
  }
  set_edges(steps, edges);
  steps.takeovers.resize(steps.steps);
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step) {
    for (const InPlace& pair : graph.steps[step].in_place) {
      const GraphValue& heir = graph.values[pair.write];
      const std::uint32_t donor = out.stored[out.root[pair.read]];
      if (heir.alias || heir.bytes == 0 || donor == kNone || donor == out.stored[pair.write]) continue;
      if (out.delta[pair.read] != 0 || heir.bytes > graph.values[pair.read].bytes) continue;
      const std::uint32_t stored = out.stored[pair.write];
      steps.takeovers[step].push_back({donor, stored});
    }
    std::sort(steps.takeovers[step].begin(), steps.takeovers[step].end(), [](const Takeover& a, const Takeover& b) {
      return std::pair(a.donor, a.heir) < std::pair(b.donor, b.heir);
    });
  }
}

}  // namespace

Lists::Lists(std::size_t count, Pairs& pairs) : begin_(count + 1, 0) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  for (const auto& pair : pairs) ++begin_[pair.first + std::size_t{1}];
  for (std::size_t i = 1; i <= count; ++i) begin_[i] += begin_[i - 1];
  items_.reserve(pairs.size());
  for (const auto& pair : pairs) items_.push_back(pair.second);
}

Result<CheckedGraph> check_graph(const MemoryGraph& graph) {
  CheckedGraph out;
  BERTH_TRY(check_values(graph));
  BERTH_TRY(fold_windows(graph, out));
  BERTH_TRY(check_steps(graph, out));
  BERTH_TRY(measure(graph, out));
  connect(graph, out);
  return out;
}

Result<std::vector<std::uint32_t>> first_order(const StepGraph& graph) {
  std::vector<std::size_t> missing(graph.steps);
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t step = 0; step < graph.steps; ++step) {
    missing[step] = graph.before[step].size();
    if (missing[step] == 0) ready.push(step);
  }
  std::vector<std::uint32_t> out;
  out.reserve(graph.steps);
  while (!ready.empty()) {
    const std::uint32_t step = ready.top();
    ready.pop();
    out.push_back(step);
    for (const std::uint32_t next : graph.next[step])
      if (--missing[next] == 0) ready.push(next);
  }
  if (out.size() == graph.steps) return out;
  const auto stuck = std::find_if(missing.begin(), missing.end(), [](std::size_t count) { return count > 0; });
  return Error(Code::kCycle, Layer::kPlan, "no order exists: step {} waits for itself or for a cycle",
               stuck - missing.begin());
}

Result<void> check_order(const StepGraph& graph, std::span<const std::uint32_t> order) {
  if (order.size() != graph.steps)
    return invalid("the given order has {} steps, the graph {}", order.size(), graph.steps);
  std::vector<bool> ran(graph.steps, false);
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (order[at] >= graph.steps)
      return invalid("the given order names step {}, but there are {}", order[at], graph.steps);
    if (ran[order[at]]) return invalid("the given order has step {} more than once", order[at]);
    for (const std::uint32_t other : graph.before[order[at]])
      if (!ran[other])
        return invalid("the given order runs step {} before step {}, on which it depends", order[at], other);
    ran[order[at]] = true;
  }
  return {};
}

State::State(const StepGraph& graph)
    : graph_(graph),
      missing_(graph.steps),
      begun_(graph.stored.size(), 0),
      left_(graph.stored.size()),
      live_(graph.base) {
  for (std::size_t step = 0; step < graph.steps; ++step)
    missing_[step] = static_cast<std::uint32_t>(graph.before[step].size());
  for (std::size_t value = 0; value < graph.stored.size(); ++value) {
    left_[value] = static_cast<std::uint32_t>(graph.users[value].size());
    if (graph.stored[value].input) {
      begun_[value] = 1;
      live_ += graph.stored[value].bytes;
    }
  }
}

std::uint64_t State::need(std::uint32_t step) const noexcept {
  std::uint64_t bytes = live_ + graph_.scratch[step];
  for (const std::uint32_t value : graph_.writes[step])
    if (begun_[value] == 0) bytes += graph_.stored[value].bytes;
  std::uint32_t last = kNone;
  std::uint64_t saved = 0;
  for (const Takeover& it : graph_.takeovers[step]) {
    if (left_[it.donor] != 1 || graph_.stored[it.donor].kept || begun_[it.heir] != 0) continue;
    if (it.donor != last) {
      bytes -= saved;
      saved = 0;
      last = it.donor;
    }
    saved = std::max(saved, graph_.stored[it.heir].bytes);  // only one can take the bytes over
  }
  return bytes - saved;
}

void State::run(std::uint32_t step) noexcept {
  for (const std::uint32_t value : graph_.writes[step])
    if (begun_[value]++ == 0) live_ += graph_.stored[value].bytes;
  for (const std::uint32_t value : graph_.uses[step])
    if (--left_[value] == 0 && !graph_.stored[value].kept) live_ -= graph_.stored[value].bytes;
  for (const std::uint32_t next : graph_.next[step]) --missing_[next];
}

void State::undo(std::uint32_t step) noexcept {
  for (const std::uint32_t next : graph_.next[step]) ++missing_[next];
  for (const std::uint32_t value : graph_.uses[step])
    if (left_[value]++ == 0 && !graph_.stored[value].kept) live_ += graph_.stored[value].bytes;
  for (const std::uint32_t value : graph_.writes[step])
    if (--begun_[value] == 0) live_ -= graph_.stored[value].bytes;
}

std::vector<std::uint64_t> needs_of(const StepGraph& graph, std::span<const std::uint32_t> order) {
  State state(graph);
  std::vector<std::uint64_t> out;
  out.reserve(order.size());
  for (const std::uint32_t step : order) {
    out.push_back(state.need(step));
    state.run(step);
  }
  return out;
}

std::uint64_t peak_of(const StepGraph& graph, std::span<const std::uint32_t> order) {
  State state(graph);
  std::uint64_t most = state.live();
  for (const std::uint32_t step : order) {
    most = std::max(most, state.need(step));
    state.run(step);
  }
  return std::max(most, state.live());
}

std::uint64_t order_bound(const StepGraph& graph) {
  const Result<std::vector<std::uint32_t>> order = first_order(graph);
  if (!order) return 0;
  std::uint64_t most = graph.base;
  std::uint64_t begins = graph.base, ends = graph.base;
  for (const Stored& it : graph.stored) {
    begins += it.input ? it.bytes : 0;
    ends += it.kept ? it.bytes : 0;
  }
  most = std::max({most, begins, ends});
  // For 64 steps at a time: of each step, which of them come before it or are it, and which come after it or are it.
  std::vector<std::uint64_t> earlier(graph.steps), later(graph.steps);
  for (std::size_t first = 0; first < graph.steps; first += 64) {
    const std::size_t last = std::min(graph.steps, first + 64);
    const auto own = [&](std::uint32_t step) {
      return step >= first && step < last ? std::uint64_t{1} << (step - first) : 0;
    };
    for (const std::uint32_t step : *order) {
      earlier[step] = own(step);
      for (const std::uint32_t other : graph.before[step]) earlier[step] |= earlier[other];
    }
    for (auto at = order->rbegin(); at != order->rend(); ++at) {
      later[*at] = own(*at);
      for (const std::uint32_t other : graph.next[*at]) later[*at] |= later[other];
    }
    std::uint64_t live[64];
    for (std::size_t step = first; step < last; ++step) {
      live[step - first] = graph.base + graph.scratch[step];
      std::uint32_t donor = kNone;
      std::uint64_t saved = 0;
      // Subtracted here; the bytes of the heir, which is certain to be live, are added below.
      for (const Takeover& it : graph.takeovers[step]) {
        if (graph.stored[it.donor].kept) continue;
        if (it.donor != donor) {
          live[step - first] -= saved;
          saved = 0;
          donor = it.donor;
        }
        saved = std::max(saved, graph.stored[it.heir].bytes);
      }
      live[step - first] -= saved;
    }
    for (std::size_t value = 0; value < graph.stored.size(); ++value) {
      const Stored& it = graph.stored[value];
      std::uint64_t after_writing = it.input ? ~std::uint64_t{0} : 0, before_the_end = it.kept ? ~std::uint64_t{0} : 0;
      for (const std::uint32_t step : graph.writers[value]) after_writing |= later[step];
      for (const std::uint32_t step : graph.users[value]) before_the_end |= earlier[step];
      for (std::uint64_t both = after_writing & before_the_end; both != 0; both &= both - 1) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(both));
        live[bit] += it.bytes;
      }
    }
    for (std::size_t step = first; step < last; ++step) most = std::max(most, live[step - first]);
  }
  return most;
}

namespace {

// The number of steps that are left when a step is the only ready one, forwards or backwards; 0 if it never is.
std::vector<std::size_t> alone_with(const StepGraph& graph, const Lists& before, const Lists& next) {
  std::vector<std::size_t> missing(graph.steps), out(graph.steps, 0);
  std::vector<std::uint32_t> ready;
  for (std::uint32_t step = 0; step < graph.steps; ++step) {
    missing[step] = before[step].size();
    if (missing[step] == 0) ready.push_back(step);
  }
  for (std::size_t left = graph.steps; !ready.empty(); --left) {
    const std::uint32_t step = ready.back();
    if (ready.size() == 1) out[step] = left;
    ready.pop_back();
    for (const std::uint32_t other : next[step])
      if (--missing[other] == 0) ready.push_back(other);
  }
  return out;
}

}  // namespace

std::vector<std::size_t> cuts_of(const StepGraph& graph, std::span<const std::uint32_t> order) {
  const std::vector<std::size_t> after = alone_with(graph, graph.before, graph.next);
  const std::vector<std::size_t> before = alone_with(graph, graph.next, graph.before);
  std::vector<std::size_t> out;
  for (std::size_t at = 0; at < order.size(); ++at)
    if (after[order[at]] == order.size() - at && before[order[at]] == at + 1) out.push_back(at + 1);
  if (out.empty() || out.back() != order.size()) out.push_back(order.size());
  return out;
}

StepGraph part_of(const StepGraph& graph, std::span<const std::uint32_t> order, std::size_t begin, std::size_t end) {
  // Positions before the part: 0, inside: 1 + index, after: kNone.
  std::vector<std::uint32_t> place(graph.steps, kNone);
  for (std::size_t at = 0; at < begin; ++at) place[order[at]] = 0;
  for (std::size_t at = begin; at < end; ++at) place[order[at]] = static_cast<std::uint32_t>(1 + at - begin);
  const auto inside = [&](std::uint32_t step) { return place[step] != 0 && place[step] != kNone; };
  StepGraph out;
  out.steps = end - begin;
  out.base = graph.base;
  Edges edges;
  auto& [before, next, writes, uses, writers, users] = edges;
  std::vector<std::uint32_t> new_index(graph.stored.size(), kNone);
  for (std::uint32_t value = 0; value < graph.stored.size(); ++value) {
    const Stored& it = graph.stored[value];
    bool begun = it.input, after = it.kept, here = false;
    for (const std::uint32_t step : graph.writers[value]) begun = begun || place[step] == 0;
    for (const std::uint32_t step : graph.users[value]) {
      here = here || inside(step);
      after = after || place[step] == kNone;
    }
    if (begun && after) {
      out.base += it.bytes;
      continue;
    }
    if (!here) continue;
    const auto index = static_cast<std::uint32_t>(out.stored.size());
    new_index[value] = index;
    out.stored.push_back({it.bytes, after, begun});
    for (const std::uint32_t step : graph.users[value]) {
      if (!inside(step)) continue;
      users.emplace_back(index, place[step] - 1);
      uses.emplace_back(place[step] - 1, index);
    }
    for (const std::uint32_t step : graph.writers[value]) {
      if (!inside(step)) continue;
      writers.emplace_back(index, place[step] - 1);
      writes.emplace_back(place[step] - 1, index);
    }
  }
  out.takeovers.resize(out.steps);
  for (std::size_t at = begin; at < end; ++at) {
    const std::uint32_t step = order[at];
    const auto index = static_cast<std::uint32_t>(at - begin);
    out.scratch.push_back(graph.scratch[step]);
    for (const std::uint32_t other : graph.before[step]) {
      if (!inside(other)) continue;
      before.emplace_back(index, place[other] - 1);
      next.emplace_back(place[other] - 1, index);
    }
    for (const Takeover& it : graph.takeovers[step])
      if (new_index[it.donor] != kNone && new_index[it.heir] != kNone)
        out.takeovers[index].push_back({new_index[it.donor], new_index[it.heir]});
  }
  set_edges(out, edges);
  return out;
}

}  // namespace berth::internal::graphs
