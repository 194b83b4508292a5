#include "engines/node_memory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "berth/plan/plan_graph.h"

namespace berth::internal::ort {
namespace {

using Json = nlohmann::json;

// Positions of the last reader of each value; the count of nodes for what the model returns.
std::vector<std::size_t> last_uses(const OrtGraph& graph, std::span<const std::uint32_t> order) {
  std::vector<std::size_t> last(graph.returned.size());
  for (std::size_t at = 0; at < order.size(); ++at) {
    const OrtNode& node = graph.nodes[order[at]];
    for (const std::uint32_t value : node.writes) last[value] = std::max(last[value], at);
    for (const std::uint32_t value : node.reads) last[value] = std::max(last[value], at);
  }
  for (std::size_t value = 0; value < last.size(); ++value)
    if (graph.returned[value]) last[value] = order.size();
  return last;
}

// The most bytes of these requests at one time.
std::uint64_t most_at_once(const std::vector<TimedRequest>& requests) {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::uint64_t live = 0;
    for (std::size_t k = 0; k <= i; ++k)
      if (k == i || requests[k].end > requests[i].begin) live += requests[k].bytes;
    most = std::max(most, live);
  }
  return most;
}

MemoryGraph steps_of(const OrtGraph& graph, const NodeMemory& memory) {
  MemoryGraph steps;
  steps.values.resize(graph.returned.size());
  std::vector<bool> is_read(graph.returned.size());
  for (const OrtNode& node : graph.nodes)
    for (const std::uint32_t value : node.reads) is_read[value] = true;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    GraphStep& step = steps.steps.emplace_back();
    step.reads = graph.nodes[i].reads;
    step.writes = graph.nodes[i].writes;
    step.scratch = memory.node_scratch[i];
    for (const std::uint32_t value : step.writes) {
      // plan_graph() keeps what nobody reads to the end; the engine needs it only during its node.
      if (is_read[value] || graph.returned[value])
        steps.values[value].bytes = memory.value_bytes[value];
      else
        step.scratch += memory.value_bytes[value];
      steps.values[value].keep = graph.returned[value];
    }
  }
  return steps;
}

}  // namespace

Result<std::vector<NodeStart>> read_profile(std::string_view json) {
  const auto wrong = [] { return Error(Code::kInvalidData, Layer::kEngine, "this is not a profile of the engine"); };
  const Json events = Json::parse(json, nullptr, false);
  if (!events.is_array()) return wrong();
  std::vector<NodeStart> starts;
  for (const Json& event : events) {
    if (!event.is_object()) return wrong();
    const auto category = event.find("cat");
    if (category == event.end() || *category != "Node") continue;
    const auto time = event.find("ts"), arguments = event.find("args");
    if (time == event.end() || !time->is_number_unsigned() || arguments == event.end() || !arguments->is_object())
      return wrong();
    const auto index = arguments->find("node_index");
    if (index == arguments->end()) continue;  // an event around the execution of a node
    if (!index->is_string()) return wrong();
    const auto& digits = index->get_ref<const std::string&>();
    const bool is_number = !digits.empty() && digits.size() < 10 &&
                           std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) return wrong();
    starts.push_back({static_cast<std::uint32_t>(std::stoul(digits)), time->get<std::uint64_t>()});
  }
  return starts;
}

Result<NodeMemory> memory_of_nodes(const OrtGraph& graph, std::span<const NodeStart> starts,
                                   std::span<const TimedRequest> requests) {
  const std::size_t count = graph.nodes.size();
  std::unordered_map<std::uint32_t, std::uint32_t> by_index;
  std::vector<std::uint32_t> indices;
  for (std::uint32_t node = 0; node < count; ++node) {
    by_index.emplace(graph.nodes[node].index, node);
    indices.push_back(graph.nodes[node].index);
  }
  NodeMemory memory{.order = {},
                    .value_bytes = std::vector<std::uint64_t>(graph.returned.size()),
                    .node_scratch = std::vector<std::uint64_t>(count)};
  std::vector<std::uint64_t> times;
  for (const NodeStart& start : starts) {
    const auto found = by_index.find(start.index);
    if (found == by_index.end() || (!times.empty() && start.at < times.back())) break;
    memory.order.push_back(found->second);
    times.push_back(start.at);
  }
  if (memory.order != execution_order(graph, indices))
    return Error(Code::kUnsupported, Layer::kEngine, "the engine does not execute its nodes in the expected order");

  const std::vector<std::size_t> last = last_uses(graph, memory.order);
  // Times are cut to microseconds. A node allocates after its start, and what it was the last to read is released
  // before the start of the next one.
  struct Placed {
    TimedRequest request;
    std::size_t released_at;  // position in the order
  };
  std::vector<std::vector<Placed>> made(count);
  for (const TimedRequest& request : requests) {
    const auto born =
        static_cast<std::size_t>(std::upper_bound(times.begin(), times.end(), request.begin) - times.begin());
    if (born == 0) continue;  // before the first node
    const auto ended =
        static_cast<std::size_t>(std::lower_bound(times.begin(), times.end(), request.end) - times.begin());
    made[born - 1].push_back({request, request.end == TimedRequest::kNever ? count : std::max(ended, born) - 1});
  }
  for (std::size_t at = 0; at < count; ++at) {
    std::vector<Placed>& left = made[at];
    std::vector<std::uint32_t> without;
    for (const std::uint32_t value : graph.nodes[memory.order[at]].writes) {
      const auto found =
          std::find_if(left.begin(), left.end(), [&](const Placed& each) { return each.released_at == last[value]; });
      if (found == left.end()) {
        without.push_back(value);
        continue;
      }
      memory.value_bytes[value] = found->request.bytes;
      left.erase(found);
    }
    // What outlives the node is a value, even if its end is not the expected one.
    for (auto each = left.begin(); each != left.end() && !without.empty();) {
      if (each->released_at == at) {
        ++each;
        continue;
      }
      memory.value_bytes[without.front()] = each->request.bytes;
      without.erase(without.begin());
      each = left.erase(each);
    }
    std::vector<TimedRequest> workspace;
    for (const Placed& each : left) workspace.push_back(each.request);
    memory.node_scratch[memory.order[at]] = most_at_once(workspace);
  }
  return memory;
}

std::uint64_t peak_in_order(const OrtGraph& graph, const NodeMemory& memory, std::span<const std::uint32_t> order) {
  const std::vector<std::size_t> last = last_uses(graph, order);
  std::vector<std::uint64_t> freed(order.size() + 1);
  std::uint64_t live = 0, peak = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (const std::uint32_t value : graph.nodes[order[at]].writes) {
      live += memory.value_bytes[value];
      freed[last[value]] += memory.value_bytes[value];
    }
    peak = std::max(peak, live + memory.node_scratch[order[at]]);
    live -= freed[at];
  }
  return peak;
}

Result<IndexChoice> choose_indices(const OrtGraph& graph, const NodeMemory& memory) {
  const MemoryGraph steps = steps_of(graph, memory);
  GraphOptions options;
  options.given = memory.order;
  options.plan.time_limit = 1.0;
  BERTH_TRY_ASSIGN(const GraphPlan plan, plan_graph(steps, options));

  const std::size_t count = graph.nodes.size();
  IndexChoice choice;
  std::vector<std::uint32_t> movable, free_indices;
  for (std::uint32_t node = 0; node < count; ++node) {
    choice.indices.push_back(graph.nodes[node].index);
    if (!graph.nodes[node].movable) continue;
    movable.push_back(node);
    free_indices.push_back(graph.nodes[node].index);
  }
  std::sort(free_indices.begin(), free_indices.end());
  const auto peak_with = [&](const std::vector<std::uint32_t>& indices) {
    return peak_in_order(graph, memory, execution_order(graph, indices));
  };
  choice.recorded_peak = choice.peak = peak_with(choice.indices);
  choice.lower_bound = std::min(plan.lower_bound, choice.peak);
  const auto try_these = [&](const std::vector<std::uint32_t>& indices) {
    const std::uint64_t peak = peak_with(indices);
    if (peak > choice.peak) return;
    choice.peak = peak;
    choice.indices = indices;
  };

  // The engine begins with the highest index: what comes early in the order gets a high one. The other way round is
  // what a file in this order would be.
  std::vector<std::size_t> position(count);
  for (std::size_t at = 0; at < plan.order.size(); ++at) position[plan.order[at]] = at;
  std::vector<std::uint32_t> by_position = movable, indices = choice.indices;
  std::sort(by_position.begin(), by_position.end(), [&](auto a, auto b) { return position[a] > position[b]; });
  for (int turn = 0; turn < 2; ++turn) {
    for (std::size_t i = 0; i < by_position.size(); ++i) indices[by_position[i]] = free_indices[i];
    try_these(indices);
    std::reverse(by_position.begin(), by_position.end());
  }

  // Exchanges of two indices, kept unless they make it worse.
  constexpr std::uint64_t kWork = 20'000'000, kMostTries = 20'000;
  const std::uint64_t tries = movable.size() < 2 ? 0 : std::min(kMostTries, kWork / (count + graph.returned.size()));
  std::uint64_t state = 88172645463325252u;
  const auto draw = [&](std::size_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<std::size_t>(state % below);
  };
  for (std::uint64_t i = 0; i < tries && choice.peak > plan.peak; ++i) {
    indices = choice.indices;
    for (std::size_t swaps = 1 + draw(3); swaps > 0; --swaps)
      std::swap(indices[movable[draw(movable.size())]], indices[movable[draw(movable.size())]]);
    try_these(indices);
  }
  return choice;
}

}  // namespace berth::internal::ort
