#include "berth/engines/tflite.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/plan/order.h"
#include "engines/tflite/tflite_model.h"

namespace berth::engines {

using namespace internal;

namespace {

using tflite::Model;

constexpr std::uint64_t kAlignment = 16;  // of every tensor in the runtime's arena

// A file of a few hundred bytes can ask for 2^64 runs of a subgraph, or for runs within runs without end.
constexpr std::size_t kMostWork = 10'000'000;
constexpr int kDeepest = 64;

// When each tensor of each subgraph holds data, as the runtime counts: the inputs of a subgraph exist before its first
// operator, its outputs until after the last, an operator's tensors also while the subgraphs that it runs do, and a
// tensor that nothing uses at the very beginning. A subgraph that runs several times has several intervals.
class Lifetimes {
 public:
  explicit Lifetimes(const Model& model) : model_(model) {
    for (const tflite::Subgraph& each : model.subgraphs) intervals_.emplace_back(each.tensors.size());
    open_.resize(model.subgraphs.size());
  }

  Result<void> mark(std::span<const std::uint32_t> main_order) {
    BERTH_TRY(run(0, main_order));
    for (auto& subgraph : intervals_)
      for (auto& tensor : subgraph)
        if (tensor.empty()) tensor.push_back({0, 1});
    return {};
  }

  const std::vector<LevelRange>& of(std::size_t subgraph, std::size_t tensor) const {
    return intervals_[subgraph][tensor];
  }

 private:
  Result<void> run(std::uint32_t index, std::span<const std::uint32_t> order) {
    const tflite::Subgraph& graph = model_.subgraphs[index];
    if (open_[index]) return Error(Code::kUnsupported, Layer::kEngine, "subgraph {} runs itself", index);
    work_ += 1 + graph.tensors.size() + graph.operators.size();
    if (work_ > kMostWork || ++depth_ > kDeepest)
      return Error(Code::kUnsupported, Layer::kEngine, "the subgraphs run each other too often or too deeply");
    open_[index] = true;
    constexpr std::int64_t kNever = -1;
    std::vector<std::int64_t> first(graph.tensors.size(), kNever), last(graph.tensors.size(), kNever);
    for (const auto* list : {&graph.inputs, &graph.outputs})
      for (const std::uint32_t tensor : *list) first[tensor] = last[tensor] = level_;
    for (std::size_t k = 0; k < graph.operators.size(); ++k) {
      const tflite::Operator& each = graph.operators[order.empty() ? k : order[k]];
      ++level_;
      for (const std::uint32_t tensor : each.outputs) first[tensor] = level_;
      for (const std::uint32_t called : each.calls) {
        ++level_;
        BERTH_TRY(run(called, {}));
      }
      for (const auto* list : {&each.inputs, &each.outputs})
        for (const std::uint32_t tensor : *list) last[tensor] = level_;
    }
    for (const std::uint32_t tensor : graph.outputs) last[tensor] = level_;
    for (std::size_t i = 0; i < graph.tensors.size(); ++i)
      if (last[i] != kNever) intervals_[index][i].push_back({std::max<std::int64_t>(first[i], 0), last[i] + 1});
    open_[index] = false;
    --depth_;
    return {};
  }

  const Model& model_;
  std::int64_t level_ = 0;
  std::size_t work_ = 0;
  int depth_ = 0;
  std::vector<bool> open_;  // subgraphs that run now
  std::vector<std::vector<std::vector<LevelRange>>> intervals_;
};

std::uint64_t arena_bytes(const tflite::Tensor& tensor) {
  return tensor.in_arena && tensor.bytes ? round_up(*tensor.bytes, kAlignment) : 0;
}

Lifetime lifetime_over(std::vector<LevelRange> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](auto a, auto b) { return a.first < b.first; });
  Lifetime life{.first = intervals.front().first, .last = intervals.front().last};
  for (const LevelRange each : intervals) {
    if (each.first > life.last) life.gaps.push_back({life.last, each.first});
    life.last = std::max(life.last, each.last);
  }
  return life;
}

// What is planned: one lifetime for each index of a tensor, which stands for the tensors with that index in all
// subgraphs. Versions of the runtime read the offsets of the first subgraph for all of them, against the format; a plan
// in which they agree is right either way. `nodes` has the lifetime of each index, or kNoNode.
PlanProblem problem_of(const Model& model, const Lifetimes& lifetimes, std::vector<std::uint32_t>& nodes) {
  PlanProblem problem{.alignment = kAlignment};
  std::size_t most = 0;
  for (const tflite::Subgraph& each : model.subgraphs) most = std::max(most, each.tensors.size());
  nodes.assign(most, kNoNode);
  for (std::size_t i = 0; i < most; ++i) {
    std::vector<LevelRange> intervals;
    std::uint64_t bytes = 0;
    const std::string* name = nullptr;
    for (std::size_t s = 0; s < model.subgraphs.size(); ++s) {
      if (i >= model.subgraphs[s].tensors.size()) continue;
      const tflite::Tensor& tensor = model.subgraphs[s].tensors[i];
      if (arena_bytes(tensor) == 0) continue;
      bytes = std::max(bytes, arena_bytes(tensor));
      const auto& more = lifetimes.of(s, i);
      intervals.insert(intervals.end(), more.begin(), more.end());
      if (name == nullptr) name = &tensor.name;
    }
    if (bytes == 0) continue;
    nodes[i] = static_cast<std::uint32_t>(problem.lifetimes.size());
    Lifetime life = lifetime_over(std::move(intervals));
    life.bytes = bytes;
    life.label = *name;
    problem.lifetimes.push_back(std::move(life));
  }
  return problem;
}

// The tensors as the runtime plans them: each by itself, without gaps.
std::vector<Lifetime> stock_lifetimes(const Model& model, const Lifetimes& lifetimes) {
  std::vector<Lifetime> out;
  for (std::size_t s = 0; s < model.subgraphs.size(); ++s)
    for (std::size_t i = 0; i < model.subgraphs[s].tensors.size(); ++i) {
      const std::uint64_t bytes = arena_bytes(model.subgraphs[s].tensors[i]);
      if (bytes == 0) continue;
      const auto& intervals = lifetimes.of(s, i);
      out.push_back({.bytes = bytes, .first = intervals.front().first, .last = intervals.back().last});
    }
  return out;
}

// The most bytes of one subgraph that are live at the same time. A plan needs at least as much, whatever the other
// subgraphs do.
std::uint64_t live_peak(const tflite::Subgraph& graph, const Lifetimes& lifetimes, std::size_t index) {
  std::vector<std::pair<std::int64_t, std::uint64_t>> begins, ends;
  for (std::size_t i = 0; i < graph.tensors.size(); ++i)
    for (const LevelRange each : lifetimes.of(index, i)) {
      begins.push_back({each.first, arena_bytes(graph.tensors[i])});
      ends.push_back({each.last, arena_bytes(graph.tensors[i])});
    }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  std::uint64_t live = 0, most = 0;
  for (std::size_t begun = 0, ended = 0; begun < begins.size(); ++begun) {
    while (ends[ended].first <= begins[begun].first) live -= ends[ended++].second;
    live += begins[begun].second;
    most = std::max(most, live);
  }
  return most;
}

// The size that the runtime's own rule needs: tensors by descending size, of equal ones the later first, each at the
// lowest offset where it fits beside those placed before.
std::uint64_t stock_bytes(std::span<const Lifetime> lifetimes) {
  struct Placed {
    std::uint64_t offset;
    const Lifetime* life;
  };
  std::vector<const Lifetime*> lives;
  for (auto each = lifetimes.rbegin(); each != lifetimes.rend(); ++each) lives.push_back(&*each);
  std::stable_sort(lives.begin(), lives.end(),
                   [](const Lifetime* a, const Lifetime* b) { return a->bytes > b->bytes; });
  std::vector<Placed> placed;  // by offset
  std::uint64_t size = 0;
  for (const Lifetime* life : lives) {
    std::uint64_t offset = 0;
    for (const Placed& other : placed) {
      if (other.life->first >= life->last || life->first >= other.life->last) continue;
      if (other.offset >= offset && other.offset - offset >= life->bytes) break;
      offset = std::max(offset, other.offset + other.life->bytes);
    }
    const auto behind = std::upper_bound(placed.begin(), placed.end(), offset,
                                         [](std::uint64_t at, const Placed& other) { return at < other.offset; });
    placed.insert(behind, {offset, life});
    size = std::max(size, offset + life->bytes);
  }
  return size;
}

struct OperatorOrder {
  std::vector<std::uint32_t> order;
  std::uint64_t lower_bound;  // of the bytes live at some operator, in any order
};

// For each operator the one that it runs just before, or kNoNode. An operator that reads no value, such as one that
// unpacks a weight, and writes one value for one reader is best run just before that reader: what it writes is then
// live only where it must be, and while it runs less is live than while its reader does.
std::vector<std::uint32_t> carriers_of(const tflite::Subgraph& model) {
  std::vector<std::uint32_t> reader(model.tensors.size(), kNoNode);
  std::vector<bool> is_value(model.tensors.size()), is_shared(model.tensors.size());
  for (const std::uint32_t tensor : model.inputs) is_value[tensor] = true;
  for (const std::uint32_t tensor : model.outputs) is_shared[tensor] = true;
  for (std::uint32_t i = 0; i < model.operators.size(); ++i) {
    for (const std::uint32_t tensor : model.operators[i].outputs) is_value[tensor] = true;
    for (const std::uint32_t tensor : model.operators[i].inputs) {
      if (reader[tensor] != kNoNode && reader[tensor] != i) is_shared[tensor] = true;
      reader[tensor] = i;
    }
  }
  std::vector<std::uint32_t> out(model.operators.size(), kNoNode);
  for (std::uint32_t i = 0; i < model.operators.size(); ++i) {
    const tflite::Operator& each = model.operators[i];
    const bool reads =
        std::any_of(each.inputs.begin(), each.inputs.end(), [&](std::uint32_t tensor) { return is_value[tensor]; });
    if (reads || each.has_state || each.outputs.size() != 1 || is_shared[each.outputs[0]]) continue;
    out[i] = reader[each.outputs[0]];
  }
  return out;
}

// The operators as a graph for order_for_memory: a node for each operator that no other carries, one for each input of
// the graph, and one for each further output of an operator, which follows its operator. A node of zero bytes after the
// inputs makes them live before the first operator, as they are in the runtime.
Result<OperatorOrder> low_order(const tflite::Subgraph& model) {
  OrderGraph graph;
  std::vector<std::uint32_t> given, operators;  // the nodes in the order of the file; the operator of each node
  const std::vector<std::uint32_t> carriers = carriers_of(model);
  std::vector<std::vector<std::uint32_t>> carried(model.operators.size());
  std::vector<std::uint32_t> node_of(model.tensors.size(), kNoNode);  // that writes a tensor
  std::vector<bool> used(model.tensors.size());
  for (const std::uint32_t tensor : model.outputs) used[tensor] = true;
  for (const tflite::Operator& each : model.operators)
    for (const std::uint32_t tensor : each.inputs) used[tensor] = true;
  const auto bytes_of = [&](std::uint32_t tensor) { return arena_bytes(model.tensors[tensor]); };
  const auto add_node = [&](std::uint64_t bytes, std::uint32_t of = kNoNode) {
    given.push_back(static_cast<std::uint32_t>(graph.nodes.size()));
    graph.nodes.push_back({.bytes = bytes});
    operators.push_back(of);
    return given.back();
  };
  for (const std::uint32_t tensor : model.inputs)
    if (node_of[tensor] == kNoNode) node_of[tensor] = add_node(bytes_of(tensor));
  const auto inputs = static_cast<std::uint32_t>(graph.nodes.size());
  const std::uint32_t start = add_node(0);
  for (std::uint32_t input = 0; input < inputs; ++input) graph.edges.push_back({input, start});
  std::uint32_t state = kNoNode;  // the node after which the next operator with state runs
  for (std::uint32_t i = 0; i < model.operators.size(); ++i) {
    const tflite::Operator& each = model.operators[i];
    if (carriers[i] != kNoNode) {
      carried[carriers[i]].push_back(i);
      continue;
    }
    const std::uint32_t node = add_node(0, i);
    graph.edges.push_back({start, node});
    for (const std::uint32_t before : carried[i])
      graph.nodes[node].scratch += bytes_of(model.operators[before].outputs[0]);
    for (std::size_t k = 0; k < each.outputs.size(); ++k) {
      const std::uint32_t tensor = each.outputs[k];
      if (k == 0 && used[tensor]) {
        node_of[tensor] = node;
        graph.nodes[node].bytes = bytes_of(tensor);
        continue;
      }
      // The operator writes all its outputs at once, and one that nothing uses is gone after it.
      graph.nodes[node].scratch += bytes_of(tensor);
      if (used[tensor]) {
        node_of[tensor] = add_node(bytes_of(tensor));
        graph.edges.push_back({node, node_of[tensor]});
      }
    }
    if (!each.has_state) continue;
    if (state != kNoNode) graph.edges.push_back({state, node});
    state = node;
    if (graph.nodes[node].bytes == 0) continue;
    // A node without bytes between the two orders them and keeps no value alive.
    state = add_node(0);
    graph.edges.push_back({node, state});
  }
  for (std::uint32_t node = 0; node < operators.size(); ++node)
    if (operators[node] != kNoNode)
      for (const std::uint32_t tensor : model.operators[operators[node]].inputs)
        if (node_of[tensor] != kNoNode && node_of[tensor] != node) graph.edges.push_back({node_of[tensor], node});
  for (const std::uint32_t tensor : model.outputs)
    if (node_of[tensor] != kNoNode) graph.nodes[node_of[tensor]].keep = true;
  BERTH_TRY_ASSIGN(const MemoryOrder found, order_for_memory(graph, {.given = given}));
  OperatorOrder out{.order = {}, .lower_bound = found.lower_bound};
  for (const std::uint32_t node : found.order) {
    if (operators[node] == kNoNode) continue;
    const std::vector<std::uint32_t>& before = carried[operators[node]];
    out.order.insert(out.order.end(), before.begin(), before.end());
    out.order.push_back(operators[node]);
  }
  return out;
}

// In a file made with care, parts overlap in ways that no reader notices until one of them moves.
Result<void> check_written(std::span<const std::byte> file, const Model& model, std::span<const std::uint32_t> order) {
  const auto read = tflite::read_model(file);
  bool same = read && read->has_plan && read->subgraphs.size() == model.subgraphs.size();
  for (std::size_t s = 0; same && s < model.subgraphs.size(); ++s) {
    const tflite::Subgraph &before = model.subgraphs[s], &after = read->subgraphs[s];
    same = before.tensors == after.tensors && before.inputs == after.inputs && before.outputs == after.outputs &&
           before.operators.size() == after.operators.size();
    for (std::size_t i = 0; same && i < before.operators.size(); ++i)
      same = before.operators[s == 0 ? order[i] : i] == after.operators[i];
  }
  if (!same)
    return Error(Code::kInvalidData, Layer::kEngine, "parts of the model overlap, so that it cannot be changed");
  return {};
}

}  // namespace

Result<TflitePlan> plan_tflite(std::span<const std::byte> file, const TfliteOptions& options) {
  BERTH_TRY_ASSIGN(const Model model, tflite::read_model(file));
  TflitePlan out;
  const tflite::Subgraph& main = model.subgraphs.front();
  out.had_plan = model.has_plan;
  for (const tflite::Subgraph& each : model.subgraphs) {
    out.operators += each.operators.size();
    for (const tflite::Tensor& tensor : each.tensors) out.left_to_runtime += tensor.in_arena && !tensor.bytes;
  }

  std::vector<std::uint32_t> order(main.operators.size()), nodes;
  std::iota(order.begin(), order.end(), 0u);
  Lifetimes given(model);
  BERTH_TRY(given.mark(order));
  out.problem = problem_of(model, given, nodes);
  out.stock_bytes = stock_bytes(stock_lifetimes(model, given));
  BERTH_TRY_ASSIGN(out.plan, plan(out.problem, options.plan));
  out.given_bytes = out.plan.size;
  if (options.reorder) {
    BERTH_TRY_ASSIGN(OperatorOrder lower, low_order(main));
    // The operators of the other subgraphs keep their order.
    out.order_bound = lower.lower_bound;
    for (std::size_t s = 1; s < model.subgraphs.size(); ++s)
      out.order_bound = std::max(out.order_bound, live_peak(model.subgraphs[s], given, s));
    Lifetimes reordered(model);
    BERTH_TRY(reordered.mark(lower.order));
    PlanProblem problem = problem_of(model, reordered, nodes);
    BERTH_TRY_ASSIGN(MemoryPlan better, plan(problem, options.plan));
    if (better.size < out.plan.size) {
      out.plan = std::move(better);
      out.problem = std::move(problem);
      out.reordered = true;
      order = std::move(lower.order);
    }
  }
  if (out.plan.size > out.stock_bytes)
    return Error(
        Code::kUnsupported, Layer::kEngine,
        "the {} subgraphs must share their offsets, and such a plan needs {b}, more than the {b} of the runtime's "
        "own rule",
        model.subgraphs.size(), out.plan.size, out.stock_bytes);
  if (out.plan.size > std::numeric_limits<std::int32_t>::max())
    return Error(Code::kInfeasible, Layer::kEngine, "the plan has {b}, and the format ends at {b}", out.plan.size,
                 std::uint64_t{1} << 31);
  std::vector<std::int32_t> offsets;
  for (const tflite::Subgraph& each : model.subgraphs)
    for (std::size_t i = 0; i < each.tensors.size(); ++i)
      offsets.push_back(arena_bytes(each.tensors[i]) == 0 ? -1
                                                          : static_cast<std::int32_t>(out.plan.slots[nodes[i]].offset));
  BERTH_TRY_ASSIGN(out.file, tflite::write_model(file, model, offsets, order));
  BERTH_TRY(check_written(out.file, model, order));
  return out;
}

}  // namespace berth::engines
