#include "berth/run/queue_schedule.h"

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "run/schedule_state.h"
#include "run/thrown_error.h"

namespace berth {

using namespace internal;

// Positions on a queue count from 1. The host is one more queue, behind the others: what it has done is over when the
// next step is recorded, so nobody waits for it, but it waits for others.
//
// A clock says for each queue up to which position its steps are known to be over. The clock of a step covers what its
// queue waited for earlier, what it waits for itself, and what those steps waited for in their turn. A step needs the
// newest of its dependencies on each queue; a need that the clock of its queue covers already, or the clock of another
// step that it waits for anyway, becomes no wait. Each wait that remains is necessary, because no chain of other waits
// leads from that step to this one.
struct QueueSchedule::State {
  Schedule schedule;
  std::vector<QueuePtr> queues;

  std::uint32_t width = 0;  // queues and the host
  std::vector<StepId> order{};
  std::vector<std::uint32_t> queue_of{};    // by step; width - 1: the host
  std::vector<StepId> waits{};              // of each step, in the order of recording
  std::vector<std::uint32_t> first_wait{};  // by step: waits of s are [first_wait[s], first_wait[s] + wait_counts[s])
  std::vector<std::uint32_t> wait_counts{};
  std::vector<bool> signals{};      // by step: somebody waits for it, so it is submitted at once
  std::vector<bool> final_waits{};  // by queue: the last queue waits for it at the end
  std::uint32_t last_queue = 0;

  std::vector<Timepoint> moments{};  // by step, of those that signal
  Timepoint last_run{};

  std::uint32_t host() const noexcept { return width - 1; }
  Result<void> assign(const QueueScheduleOptions& options);
  Result<void> record_all();
  Result<void> record(StepId step);
  Result<Timepoint> submit_all();
};

namespace {

// The choice of a queue for each step in turn.
class Assignment {
 public:
  Assignment(std::span<const QueuePtr> queues, const QueueScheduleOptions& options)
      : queues_(queues), options_(options), steps_(queues.size()), newest_(queues.size(), kNobody) {}

  // `after` says for each queue the newest step that this one needs, or kNobody.
  Result<std::uint32_t> choose(StepId step, Device* device, std::span<const StepId> after, const std::string& name) {
    allowed_.clear();
    for (std::uint32_t q = 0; q < queues_.size(); ++q)
      if (device == nullptr || &queues_[q]->device() == device) allowed_.push_back(q);
    if (allowed_.empty())
      return Error::with_text(
          Code::kInvalidArgument, Layer::kSchedule,
          name + " uses memory of " + std::string(device->name()) + ", and none of the queues is of that device");
    std::uint32_t suggested = allowed_.front();
    bool continues = false;
    for (const std::uint32_t q : allowed_) {
      const bool is_next = newest_[q] != kNobody && after[q] == newest_[q];
      if (is_next != continues ? is_next : steps_[q] < steps_[suggested]) suggested = q;
      continues = continues || is_next;
    }
    std::uint32_t chosen = suggested;
    if (options_.rule) {
      chosen = options_.rule({.step = step, .suggested = suggested, .allowed = allowed_, .steps = steps_});
      if (!std::binary_search(allowed_.begin(), allowed_.end(), chosen))
        return Error::with_text(Code::kInvalidArgument, Layer::kSchedule,
                                "the rule chose queue " + std::to_string(chosen) + " for " + name +
                                    ", which is not one of the queues of its device");
    }
    ++steps_[chosen];
    newest_[chosen] = step;
    return chosen;
  }

 private:
  std::span<const QueuePtr> queues_;
  const QueueScheduleOptions& options_;
  std::vector<std::uint32_t> steps_;
  std::vector<StepId> newest_;
  std::vector<std::uint32_t> allowed_{};
};

}  // namespace

Result<void> QueueSchedule::State::assign(const QueueScheduleOptions& options) {
  const Schedule::State& from = *schedule.state_;
  const StepGraph& graph = from.graph;
  const std::uint32_t steps = graph.steps;
  order = from.by_level;
  queue_of.resize(steps);
  first_wait.resize(steps);
  wait_counts.resize(steps);
  signals.resize(steps);
  moments.resize(steps);
  final_waits.resize(queues.size());

  // What each node of the graph needs: the newest position on each queue. Joins pass on what they need.
  std::vector<std::uint32_t> needs(std::size_t{graph.nodes} * width);
  std::vector<std::uint32_t> waiting = graph.waits_for;
  std::vector<std::uint32_t> clocks(std::size_t{steps} * width);        // by step
  std::vector<std::uint32_t> queue_clocks(std::size_t{width} * width);  // what each queue has waited for
  std::vector<std::vector<StepId>> on(width);                           // the steps of each queue, by position
  std::vector<std::uint32_t> open;
  const auto row = [&](std::vector<std::uint32_t>& table, std::size_t index) {
    return std::span(table).subspan(index * width, width);
  };
  const auto raise = [&](std::span<std::uint32_t> goal, std::span<const std::uint32_t> by) {
    for (std::uint32_t q = 0; q < width; ++q) goal[q] = std::max(goal[q], by[q]);
  };
  // Tells the successors of a node that it is placed, and goes on through joins.
  const auto pass_on = [&](std::uint32_t node) {
    open.assign(1, node);
    while (!open.empty()) {
      const std::uint32_t at = open.back();
      open.pop_back();
      for (std::uint32_t e = graph.first[at]; e < graph.first[at + 1]; ++e) {
        const std::uint32_t next = graph.targets[e];
        if (at < steps) {
          const std::uint32_t q = queue_of[at];
          std::uint32_t& need = row(needs, next)[q];
          need = std::max(need, row(clocks, at)[q]);
        } else {
          raise(row(needs, next), row(needs, at));
        }
        if (--waiting[next] == 0 && next >= steps) open.push_back(next);
      }
    }
  };

  // Joins without predecessors need nothing.
  for (std::uint32_t node = steps; node < graph.nodes; ++node)
    if (graph.waits_for[node] == 0) pass_on(node);

  Assignment assignment(queues, options);
  std::vector<StepId> after(queues.size());
  for (const StepId step : order) {
    const auto need = row(needs, step);
    if (from.functions[step] && !from.recorders[step]) {
      queue_of[step] = host();
    } else {
      for (std::uint32_t q = 0; q < queues.size(); ++q) after[q] = need[q] == 0 ? kNobody : on[q][need[q] - 1];
      BERTH_TRY_ASSIGN(queue_of[step], assignment.choose(step, from.devices[step], after, from.describe(step)));
    }
    const std::uint32_t mine = queue_of[step];
    const auto known = row(queue_clocks, mine);
    first_wait[step] = static_cast<std::uint32_t>(waits.size());
    // Everything that the host has finished is over before this step is recorded, with all it waited for.
    if (!on[host()].empty()) raise(known, row(clocks, on[host()].back()));
    for (std::uint32_t q = 0; q < host(); ++q) {
      if (q == mine || need[q] <= known[q]) continue;
      const StepId other = on[q][need[q] - 1];
      // Another step that is needed too may have waited for this one.
      bool is_implied = false;
      for (std::uint32_t r = 0; r < host() && !is_implied; ++r)
        if (r != q && r != mine && need[r] > known[r]) is_implied = row(clocks, on[r][need[r] - 1])[q] >= need[q];
      if (is_implied) continue;
      waits.push_back(other);
      signals[other] = true;
    }
    wait_counts[step] = static_cast<std::uint32_t>(waits.size()) - first_wait[step];
    for (std::uint32_t w = first_wait[step]; w < waits.size(); ++w) raise(known, row(clocks, waits[w]));
    on[mine].push_back(step);
    known[mine] = static_cast<std::uint32_t>(on[mine].size());
    std::copy(known.begin(), known.end(), row(clocks, step).begin());
    pass_on(step);
  }

  // At the end, the queue of the last recorded step waits for what it does not know to be over.
  for (const StepId step : order)
    if (queue_of[step] != host()) last_queue = queue_of[step];
  const auto known = row(queue_clocks, last_queue);
  for (std::uint32_t q = 0; q < queues.size(); ++q) {
    if (q == last_queue || on[q].size() <= known[q]) continue;
    bool is_implied = false;
    for (std::uint32_t r = 0; r < queues.size() && !is_implied; ++r)
      if (r != q && r != last_queue && on[r].size() > known[r])
        is_implied = row(clocks, on[r].back())[q] >= on[q].size();
    final_waits[q] = !is_implied;
  }
  return {};
}

Result<void> QueueSchedule::State::record(StepId step) {
  Schedule::State& from = *schedule.state_;
  const std::span<const StepId> before(waits.data() + first_wait[step], wait_counts[step]);
  if (queue_of[step] == host()) {
    for (const StepId other : before) BERTH_TRY(wait(moments[other]));
    return from.functions[step]({.step = step, .worker = 0, .nodes = from.node_memory});
  }
  Queue& queue = *queues[queue_of[step]];
  for (const StepId other : before) BERTH_TRY(queue.wait_for(moments[other]));
  if (from.recorders[step]) BERTH_TRY(from.recorders[step]({.step = step, .queue = queue, .nodes = from.node_memory}));
  if (signals[step]) {
    BERTH_TRY_ASSIGN(moments[step], queue.submit());
  }
  return {};
}

Result<void> QueueSchedule::State::record_all() {
  Schedule::State& from = *schedule.state_;
  std::fill(from.states.begin(), from.states.end(), StepState::kNotRun);
  // After the run before this one. Most often it is over.
  if (!is_reached(last_run)) {
    for (const QueuePtr& queue : queues) BERTH_TRY(queue->wait_for(last_run));
    const bool has_host_steps =
        std::any_of(queue_of.begin(), queue_of.end(), [&](std::uint32_t queue) { return queue == host(); });
    if (has_host_steps) BERTH_TRY(wait(last_run));
  }
  for (const StepId step : order) {
    Result<void> done;
    try {
      done = record(step);
    } catch (...) {
      done = thrown_error();
    }
    if (!done) {
      from.states[step] = StepState::kFailed;
      return Error::with_text(done.error().code(), done.error().layer(),
                              from.describe(step) + ": " + done.error().message());
    }
    from.states[step] = StepState::kDone;
  }
  return {};
}

Result<Timepoint> QueueSchedule::State::submit_all() {
  Queue& last = *queues[last_queue];
  for (std::uint32_t q = 0; q < queues.size(); ++q) {
    if (q == last_queue) continue;
    BERTH_TRY_ASSIGN(const Timepoint moment, queues[q]->submit());
    if (final_waits[q]) BERTH_TRY(last.wait_for(moment));
  }
  return last.submit();
}

QueueSchedule::QueueSchedule(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
QueueSchedule::QueueSchedule(QueueSchedule&&) noexcept = default;
QueueSchedule& QueueSchedule::operator=(QueueSchedule&&) noexcept = default;
QueueSchedule::~QueueSchedule() = default;

Result<QueueSchedule> QueueSchedule::make(Schedule schedule, std::vector<QueuePtr> queues,
                                          const QueueScheduleOptions& options) {
  if (queues.empty() || std::find(queues.begin(), queues.end(), nullptr) != queues.end())
    return Error(Code::kInvalidArgument, Layer::kSchedule,
                 "a schedule on queues needs at least one queue and no empty pointer; {} were given", queues.size());
  if (schedule.state_->unbound)
    return Error(Code::kNotAllocated, Layer::kSchedule,
                 "the schedule's {} nodes have no memory yet: make a plan and an arena, then run bind(arena)",
                 schedule.state_->nodes.size());
  auto state = std::unique_ptr<State>(new State{.schedule = std::move(schedule), .queues = std::move(queues)});
  state->width = static_cast<std::uint32_t>(state->queues.size()) + 1;
  BERTH_TRY(state->assign(options));
  return QueueSchedule(std::move(state));
}

Result<Timepoint> QueueSchedule::run() {
  const Result<void> recorded = state_->record_all();
  Result<Timepoint> done = state_->submit_all();
  if (recorded && done) {
    state_->last_run = *done;
    return done;
  }
  // What was recorded is over before the caller learns of the failure, so that it may drop its memory.
  for (const QueuePtr& queue : state_->queues) static_cast<void>(queue->finish());
  state_->last_run = {};
  if (!recorded) return recorded.error();
  return done;
}

const Schedule& QueueSchedule::schedule() const noexcept {
  return state_->schedule;
}
std::uint32_t QueueSchedule::queue_of(StepId step) const noexcept {
  return state_->queue_of[step];
}
std::span<const StepId> QueueSchedule::order() const noexcept {
  return state_->order;
}
std::span<const StepId> QueueSchedule::waits_of(StepId step) const noexcept {
  return {state_->waits.data() + state_->first_wait[step], state_->wait_counts[step]};
}
std::size_t QueueSchedule::wait_count() const noexcept {
  return state_->waits.size();
}

}  // namespace berth
