#include "berth/run/schedule.h"

#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "run/schedule_state.h"

namespace berth {

using namespace internal;

namespace {

// Nodes without memory are storages of their own, apart from the ids of real ones.
constexpr std::uint64_t kNodeStorage = std::uint64_t{1} << 63;

}  // namespace

Schedule::Schedule(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Schedule::Schedule(Schedule&&) noexcept = default;
Schedule& Schedule::operator=(Schedule&&) noexcept = default;
Schedule::~Schedule() = default;

// A moved-from schedule has the state of one without steps, so that nothing is null.
const Schedule::State& Schedule::state() const noexcept {
  // Never destroyed: a schedule with static lifetime may ask at exit.
  static const State* const nothing = new State;  // NOLINT(bugprone-unhandled-exception-at-new): once, of a few bytes
  return state_ == nullptr ? *nothing : *state_;
}

Schedule::State& ScheduleBuilder::building() {
  if (state_ == nullptr) state_ = std::make_unique<Schedule::State>();  // moved from
  return *state_;
}

ScheduleBuilder::ScheduleBuilder(ScheduleOptions options) : state_(std::make_unique<Schedule::State>()) {
  state_->options = options;
}
ScheduleBuilder::~ScheduleBuilder() = default;
ScheduleBuilder::ScheduleBuilder(ScheduleBuilder&&) noexcept = default;
ScheduleBuilder& ScheduleBuilder::operator=(ScheduleBuilder&&) noexcept = default;

Node ScheduleBuilder::add_node(Lifetime memory, NodeRole role) {
  Schedule::State& state = building();
  const auto id = static_cast<NodeId>(state.nodes.size());
  NodeId root = id;
  std::uint64_t offset = 0;
  if (memory.alias) {
    const auto [parent, at] = *memory.alias;
    if (parent >= id) {
      if (!state.mistake)
        state.mistake = Error(Code::kNotFound, Layer::kSchedule,
                              "node {} is a window of node {}, which must be added before it", id, parent);
    } else if (memory.bytes > state.nodes[parent].bytes || at > state.nodes[parent].bytes - memory.bytes) {
      if (!state.mistake)
        state.mistake = Error(Code::kInvalidArgument, Layer::kSchedule,
                              "node {} is a window of {} bytes at {} of a node that has {}", id, memory.bytes, at,
                              state.nodes[parent].bytes);
    } else {
      root = state.roots[parent];
      offset = state.root_offsets[parent] + at;
    }
  }
  state.nodes.push_back(std::move(memory));
  state.roles.push_back(role);
  state.roots.push_back(root);
  state.root_offsets.push_back(offset);
  return Node{id};
}

StepId ScheduleBuilder::add_step(Step step) {
  Schedule::State& state = building();
  const StepId id = state.step_count();
  const auto refuse = [&](Error error) {
    if (!state.mistake) state.mistake = std::move(error);
  };
  Device* device = nullptr;
  bool device_is_written = false;
  const auto touch = [&](const Operand& operand, bool writes) {
    if (const Node* node = std::get_if<Node>(&operand.what_)) {
      if (node->id >= state.nodes.size())
        return refuse(Error(Code::kNotFound, Layer::kSchedule, "step {} uses node {}, and there are {} nodes", id,
                            node->id, state.nodes.size()));
      const std::uint64_t begin = state.root_offsets[node->id];
      state.touches.push_back({.storage = kNodeStorage | state.roots[node->id],
                               .begin = begin,
                               .end = begin + state.nodes[node->id].bytes,
                               .writes = writes});
      state.touched_nodes.push_back(node->id);
      state.unbound = state.unbound || state.nodes[node->id].bytes > 0;
      return;
    }
    Buffer buffer;
    if (const auto* in_arena = std::get_if<Operand::InArena>(&operand.what_)) {
      auto found = in_arena->arena->buffer(in_arena->node, writes ? Access::kReadWrite : Access::kRead);
      if (!found) return refuse(std::move(found).error());
      buffer = *std::move(found);
    } else {
      buffer = std::get<Buffer>(operand.what_);
      if (buffer.id() == 0)
        return refuse(Error(Code::kInvalidArgument, Layer::kSchedule, "step {} uses an empty buffer handle", id));
    }
    state.touches.push_back({.storage = buffer.storage_id(),
                             .begin = buffer.byte_offset(),
                             .end = buffer.byte_offset() + buffer.size(),
                             .writes = writes});
    state.touched_nodes.push_back(kNobody);
    if (device == nullptr || (writes && !device_is_written)) device = &buffer.device();
    device_is_written = device_is_written || writes;
    state.memory.push_back(std::move(buffer));
  };
  for (const Operand& operand : step.reads) touch(operand, false);
  for (const Operand& operand : step.writes) touch(operand, true);
  for (const StepId before : step.after) state.after.push_back({before, id});
  state.first_touch.push_back(static_cast<std::uint32_t>(state.touches.size()));
  state.labels.push_back(std::move(step.label));
  state.functions.push_back(std::move(step.run));
  state.recorders.push_back(std::move(step.record));
  state.devices.push_back(device);
  return id;
}

Result<Schedule> ScheduleBuilder::build() {
  building();
  auto state = std::exchange(state_, std::make_unique<Schedule::State>());
  state_->options = state->options;
  if (state->mistake) return *state->mistake;
  for (const Edge& edge : state->after)
    if (edge.from >= state->step_count())
      return Error(Code::kNotFound, Layer::kSchedule, "step {} waits for step {}, and there are {} steps", edge.to,
                   edge.from, state->step_count());
  std::vector<StepId> order(state->step_count());
  std::iota(order.begin(), order.end(), 0u);
  BERTH_TRY(state->freeze(order, {}));
  return Schedule(std::move(state));
}

Result<void> Schedule::State::freeze(std::span<const StepId> order, std::span<const Touch> kept) {
  Hazards hazards = find_hazards(touches, first_touch, order, after, kept);
  if (hazards.clobbered) {
    const auto [step, value] = *hazards.clobbered;
    const std::string& name = nodes[value].label;
    return Error::with_text(
        Code::kInvalidArgument, Layer::kSchedule,
        "node " + std::to_string(value) + (name.empty() ? "" : " \"" + name + "\"") +
            " is overwritten by another node before " +
            (step == kNobody ? "the end of the run" : describe(step) + " reads it") +
            ": the arena's plan is not for this schedule's lifetimes; use lifetimes_from_schedule()");
  }
  reads_before_written = std::move(hazards.reads_before_written);
  if (!options.dependencies_from_bytes) hazards = find_hazards(touches, first_touch, {}, after, {});
  graph = StepGraph(step_count(), hazards.node_count, hazards.edges);

  // Longest chains, in topological order. A join is no step of a chain.
  std::vector<std::uint32_t> depth(graph.nodes, 0), waiting = graph.waits_for, ready;
  for (std::uint32_t node = 0; node < graph.nodes; ++node)
    if (waiting[node] == 0) ready.push_back(node);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const std::uint32_t node = ready[i];
    const std::uint32_t below = depth[node] + (node < graph.steps ? 1 : 0);
    for (std::uint32_t e = graph.first[node]; e < graph.first[node + 1]; ++e) {
      const std::uint32_t target = graph.targets[e];
      depth[target] = std::max(depth[target], below);
      if (--waiting[target] == 0) ready.push_back(target);
    }
  }
  if (ready.size() < graph.nodes) return describe_cycle();
  depth.resize(graph.steps);
  levels = std::move(depth);

  // Steps sorted by level, counting.
  const std::uint32_t count = levels.empty() ? 0 : *std::max_element(levels.begin(), levels.end()) + 1;
  first_of_level.assign(count + 1, 0);
  for (const std::uint32_t level : levels) ++first_of_level[level + 1];
  widest = 0;
  for (std::uint32_t level = 0; level < count; ++level) {
    widest = std::max(widest, first_of_level[level + 1]);
    first_of_level[level + 1] += first_of_level[level];
  }
  by_level.resize(graph.steps);
  std::vector<std::uint32_t> next(first_of_level.begin(), first_of_level.end() - 1);
  for (StepId step = 0; step < graph.steps; ++step) by_level[next[levels[step]]++] = step;

  states.assign(graph.steps, StepState::kNotRun);
  {
    const MutexLock lock(mutex);
    running_on.assign(Workers::kMost, kNobody);
  }
  workers = std::make_unique<Workers>(graph);
  return {};
}

std::string Schedule::State::describe(StepId step) const {
  std::string text = "step " + std::to_string(step);
  if (!labels[step].empty()) text += " \"" + labels[step] + "\"";
  return text;
}

// Walks backwards among the nodes that a topological order never reaches, until it meets itself.
Error Schedule::State::describe_cycle() const {
  std::vector<std::uint32_t> waiting = graph.waits_for, ready;
  for (std::uint32_t node = 0; node < graph.nodes; ++node)
    if (waiting[node] == 0) ready.push_back(node);
  for (std::size_t i = 0; i < ready.size(); ++i)
    for (std::uint32_t e = graph.first[ready[i]]; e < graph.first[ready[i] + 1]; ++e)
      if (--waiting[graph.targets[e]] == 0) ready.push_back(graph.targets[e]);
  std::vector<std::uint32_t> before(graph.nodes, kNobody);
  for (std::uint32_t node = 0; node < graph.nodes; ++node)
    if (waiting[node] > 0)
      for (std::uint32_t e = graph.first[node]; e < graph.first[node + 1]; ++e)
        if (waiting[graph.targets[e]] > 0) before[graph.targets[e]] = node;
  std::uint32_t node = 0;
  while (waiting[node] == 0) ++node;
  std::vector<bool> seen(graph.nodes, false);
  while (!seen[node]) {
    seen[node] = true;
    node = before[node];
  }
  std::vector<StepId> cycle;
  const std::uint32_t start = node;
  do {
    if (node < graph.steps) cycle.push_back(node);
    node = before[node];
  } while (node != start);
  std::reverse(cycle.begin(), cycle.end());
  std::string text = "steps wait for each other: ";
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < std::min(kShown, cycle.size()); ++i) text += describe(cycle[i]) + ", then ";
  if (cycle.size() > kShown) text += "... (" + std::to_string(cycle.size()) + " steps), then ";
  text += describe(cycle.front()) +
          " again; an `after` must not contradict the order in which conflicting steps were added";
  return Error::with_text(Code::kCycle, Layer::kSchedule, std::move(text));
}

std::size_t Schedule::step_count() const noexcept {
  return state().step_count();
}
std::size_t Schedule::node_count() const noexcept {
  return state().nodes.size();
}
std::size_t Schedule::edge_count() const noexcept {
  return state().graph.targets.size();
}
std::uint32_t Schedule::level_count() const noexcept {
  return static_cast<std::uint32_t>(state().first_of_level.size() - 1);
}
std::uint32_t Schedule::level_of(StepId step) const noexcept {
  return state().levels[step];
}
std::string_view Schedule::label_of(StepId step) const noexcept {
  return state().labels[step];
}
StepState Schedule::state_of(StepId step) const noexcept {
  return state().states[step];
}

std::span<const StepId> Schedule::steps_of(std::uint32_t level) const noexcept {
  const std::uint32_t first = state().first_of_level[level];
  return std::span(state().by_level).subspan(first, state().first_of_level[level + 1] - first);
}

std::vector<StepId> Schedule::dependencies_of(StepId step) const {
  const StepGraph& graph = state().graph;
  std::vector<Edge> reversed;
  for (std::uint32_t node = 0; node < graph.nodes; ++node)
    for (std::uint32_t e = graph.first[node]; e < graph.first[node + 1]; ++e)
      reversed.push_back({graph.targets[e], node});
  const StepGraph back(graph.steps, graph.nodes, reversed);
  std::vector<StepId> found;
  std::vector<bool> seen(graph.nodes, false);
  std::vector<std::uint32_t> open{step};
  while (!open.empty()) {
    const std::uint32_t node = open.back();
    open.pop_back();
    for (std::uint32_t e = back.first[node]; e < back.first[node + 1]; ++e) {
      const std::uint32_t before = back.targets[e];
      if (seen[before]) continue;
      seen[before] = true;
      (before < graph.steps ? found : open).push_back(before);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<Schedule> Schedule::bind(const Arena& arena) const {
  const State& from = state();
  auto state = std::make_unique<State>();
  // Nodes that take turns in bytes must be ordered by them, however the steps were ordered so far.
  state->options = {.dependencies_from_bytes = true};
  state->labels = from.labels;
  state->functions = from.functions;
  state->recorders = from.recorders;
  state->devices = from.devices;
  state->touches = from.touches;
  state->touched_nodes = from.touched_nodes;
  state->first_touch = from.first_touch;
  state->after = from.after;
  state->memory = from.memory;
  state->nodes = from.nodes;
  state->roles = from.roles;
  state->roots = from.roots;
  state->root_offsets = from.root_offsets;

  std::vector<Access> access(from.nodes.size(), Access::kRead);
  for (std::size_t i = 0; i < from.touches.size(); ++i)
    if (from.touches[i].writes && from.touched_nodes[i] != kNobody) access[from.touched_nodes[i]] = Access::kReadWrite;
  state->node_memory.resize(from.nodes.size());
  for (NodeId node = 0; node < from.nodes.size(); ++node) {
    if (from.nodes[node].bytes == 0) continue;
    BERTH_TRY_ASSIGN(const std::size_t bytes, arena.slot_len(node));
    if (bytes < from.nodes[node].bytes)
      return Error(Code::kInvalidArgument, Layer::kSchedule,
                   "node {} needs {} bytes and its slot has {}: the arena's plan is not for this schedule", node,
                   from.nodes[node].bytes, bytes);
    BERTH_TRY_ASSIGN(state->node_memory[node], arena.buffer(node, access[node]));
  }
  const auto place = [&](NodeId node, bool writes) {
    const Buffer& buffer = state->node_memory[node];
    return Touch{.storage = buffer.storage_id(),
                 .begin = buffer.byte_offset(),
                 .end = buffer.byte_offset() + from.nodes[node].bytes,
                 .value = from.roots[node],
                 .writes = writes};
  };
  for (StepId step = 0; step < from.step_count(); ++step)
    for (std::uint32_t i = from.first_touch[step]; i < from.first_touch[step + 1]; ++i)
      if (const NodeId node = state->touched_nodes[i]; node != kNobody && from.nodes[node].bytes > 0) {
        state->touches[i] = place(node, state->touches[i].writes);
        if (state->devices[step] == nullptr) state->devices[step] = &state->node_memory[node].device();
      }
  std::vector<Touch> kept;
  for (NodeId node = 0; node < from.nodes.size(); ++node)
    if (from.nodes[node].bytes > 0 && (from.roles[node] == NodeRole::kOutput || from.nodes[node].pinned))
      kept.push_back(place(node, false));
  // By level, because levels are what the plan was made for: a step added early may run late.
  BERTH_TRY(state->freeze(from.by_level, kept));
  return Schedule(std::move(state));
}

std::vector<Lifetime> lifetimes_from_schedule(const Schedule& schedule) {
  const Schedule::State& state = schedule.state();
  const auto levels = static_cast<std::int64_t>(schedule.level_count());
  std::vector<Lifetime> lifetimes = state.nodes;
  // The only step that uses a node at its first level, and the only one that uses a root (through any window) at its
  // last; kNobody if there are several.
  struct Ends {
    std::int64_t first = -1, last = -1;
    StepId first_step = kNobody, last_step = kNobody;
  };
  std::vector<Ends> ends(lifetimes.size()), root_ends(lifetimes.size());
  const auto widen = [](Ends& end, std::int64_t level, StepId step) {
    if (end.first < 0 || level < end.first)
      end.first = level, end.first_step = step;
    else if (level == end.first && end.first_step != step)
      end.first_step = kNobody;
    if (level > end.last)
      end.last = level, end.last_step = step;
    else if (level == end.last && end.last_step != step)
      end.last_step = kNobody;
  };
  std::vector<bool> input(lifetimes.size(), false);
  for (StepId step = 0; step < state.step_count(); ++step)
    for (std::uint32_t i = state.first_touch[step]; i < state.first_touch[step + 1]; ++i) {
      const NodeId node = state.touched_nodes[i];
      if (node == kNobody) continue;
      widen(ends[node], state.levels[step], step);
      widen(root_ends[state.roots[node]], state.levels[step], step);
      if (state.reads_before_written[i]) input[node] = true;
    }
  for (NodeId node = 0; node < lifetimes.size(); ++node) {
    Lifetime& lifetime = lifetimes[node];
    lifetime.first = input[node] ? 0 : std::max<std::int64_t>(0, ends[node].first);
    lifetime.last = state.roles[node] == NodeRole::kOutput ? levels : ends[node].last + 1;
    lifetime.last = std::max(lifetime.last, lifetime.first + 1);
    if (!lifetime.reuse_in_place) continue;
    const NodeId other = *lifetime.reuse_in_place;
    const bool alone = other < lifetimes.size() && !input[node] && ends[node].first_step != kNobody &&
                       root_ends[state.roots[node]].first_step == ends[node].first_step &&
                       root_ends[state.roots[other]].last_step == ends[node].first_step;
    if (!alone) lifetime.reuse_in_place.reset();
  }
  return lifetimes;
}

}  // namespace berth
