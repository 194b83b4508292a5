// Runs steps in parallel such that no two running steps access the same bytes while one of them writes. A step names
// what it reads and writes: buffers, nodes of an arena, or nodes that have no memory yet. Two steps conflict only if
// their byte ranges of one storage overlap and one of them writes. Conflicting steps run in the order in which they
// were added; all others may run in parallel. A ScheduleBuilder belongs to one thread. A Schedule keeps the memory of
// its steps alive; its const functions may be called from any thread, with one run at a time.
//
//   ScheduleBuilder --build()--> Schedule --lifetimes_from_schedule()--> plan() --> Arena
//                                    |                                               |
//                                    +------------------- bind(arena) <--------------+  --> Schedule that runs
//
// The level of a step is the length of the longest chain of steps before it. Steps of one level never conflict. A step
// waits only for the steps it depends on, not for levels, so a level-3 step may run while a slow level-1 step is still
// running.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"
#include "berth/run/arena.h"
#include "berth/tensor/buffer.h"

namespace berth {

using StepId = std::uint32_t;

// A node whose memory is provided later, by the arena that the schedule is bound to. Its id is its index in the
// lifetimes and in their plan.
struct Node {
  NodeId id = 0;
};

enum class NodeRole : std::uint8_t {
  kTemporary,  // live from its first use to its last
  kOutput,     // live until the end of a run
};

// An operand of a step.
class Operand {
 public:
  Operand(Buffer buffer) : what_(std::move(buffer)) {}
  Operand(Node node) : what_(node) {}
  // A node of an arena, resolved when the step is added.
  Operand(const Arena& arena, NodeId node) : what_(InArena{&arena, node}) {}

 private:
  friend class ScheduleBuilder;
  struct InArena {
    const Arena* arena;
    NodeId node;
  };
  std::variant<Buffer, Node, InArena> what_;
};

// The argument of a step function. Valid during the call.
struct StepRun {
  StepId step = 0;
  std::uint32_t worker = 0;         // no other step runs on this worker now: use it to select a queue or scratch
  std::span<const Buffer> nodes{};  // of the bound arena, by node id

  const Buffer& node(Node node) const noexcept { return nodes[node.id]; }
};

// The function of a step. All its accesses must be complete when it returns: it must wait for work on a queue, or rely
// on the order of that queue. An error or an exception fails the step.
using StepFunction = std::function<Result<void>(const StepRun&)>;

// The argument of a recording function. Valid during the call.
struct StepRecord {
  StepId step = 0;
  Queue& queue;                     // the queue of this step
  std::span<const Buffer> nodes{};  // of the bound arena, by node id

  const Buffer& node(Node node) const noexcept { return nodes[node.id]; }
};

// The function of a step that runs on a queue (see queue_schedule.h): it records the work of the step on that queue and
// does not wait for it. An error or an exception fails the step.
using RecordFunction = std::function<Result<void>(const StepRecord&)>;

struct Step {
  std::string label = {};  // for messages
  std::vector<Operand> reads = {};
  std::vector<Operand> writes = {};
  std::vector<StepId> after = {};  // additional steps to wait for; they may be added later
  StepFunction run = {};           // empty: does nothing
  RecordFunction record = {};      // used instead of `run` by a QueueSchedule
};

struct ScheduleOptions {
  // Derive dependencies from the bytes that steps use. Otherwise only Step::after counts and the caller is responsible
  // for the order; RunOptions::check_overlaps verifies it. A schedule bound to an arena always derives them.
  bool dependencies_from_bytes = true;
};

struct RunOptions {
  // The largest number of steps that run at the same time; 0: one per core. One worker runs everything on the calling
  // thread.
  std::uint32_t workers = 0;
  // Before each step, checks that no running step conflicts with it; if one does, the step fails with kInvalidUsage,
  // naming both. Takes a lock per step: for debugging.
  bool check_overlaps = false;
};

enum class StepState : std::uint8_t {
  kNotRun,   // not run yet
  kDone,     // returned success
  kFailed,   // returned an error or threw
  kSkipped,  // a step it depends on failed
};

class Schedule {
 public:
  // A moved-from schedule has no steps.
  Schedule(Schedule&&) noexcept;
  Schedule& operator=(Schedule&&) noexcept;
  ~Schedule();

  std::size_t step_count() const noexcept;
  std::size_t node_count() const noexcept;
  // The number of stored dependencies, including joins (see docs/arena_and_schedule.md): O(n log n) for n accesses.
  std::size_t edge_count() const noexcept;
  std::uint32_t level_count() const noexcept;
  // Requires: step < step_count().
  std::uint32_t level_of(StepId step) const noexcept;
  std::string_view label_of(StepId step) const noexcept;
  // The steps of a level, ascending. Requires: level < level_count().
  std::span<const StepId> steps_of(std::uint32_t level) const noexcept;
  // The steps that this one waits for directly, ascending. O(edges). Requires: step < step_count().
  std::vector<StepId> dependencies_of(StepId step) const;

  // Runs all steps and waits for them. Steps that depend on a failed step are skipped and all others run, so the
  // outcome of a failed run does not depend on timing. Returns the error of the failed step with the lowest id,
  // prefixed with its label. The schedule can be run again after any outcome.
  //   kInvalidUsage     the schedule is already running, or check_overlaps found a conflict
  //   kNotAllocated     a node has no memory yet: call bind() first
  // O(steps + edges) plus the steps themselves; nothing is allocated per step.
  Result<void> run(const RunOptions& options = {}) const;

  // The state of a step after the last run. Requires: step < step_count(), and no run is in progress.
  StepState state_of(StepId step) const noexcept;

  // The same steps with every node in the arena. Nodes that reuse the same bytes are ordered by level. The arena's plan
  // must be for lifetimes_from_schedule() of this schedule. kInvalidArgument, naming the node, if a node would be
  // overwritten before its last use, which cannot happen with such a plan; kNotFound if the arena lacks a node.
  Result<Schedule> bind(const Arena& arena) const;

 private:
  friend class ScheduleBuilder;
  friend class QueueSchedule;
  friend std::vector<Lifetime> lifetimes_from_schedule(const Schedule& schedule);
  struct State;
  explicit Schedule(std::unique_ptr<State> state) noexcept;
  const State& state() const noexcept;

  std::unique_ptr<State> state_;
};

class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(ScheduleOptions options = {});
  ~ScheduleBuilder();
  // A moved-from builder is empty and has default options.
  ScheduleBuilder(ScheduleBuilder&&) noexcept;
  ScheduleBuilder& operator=(ScheduleBuilder&&) noexcept;

  // Adds a node to be planned. first and last of `memory` are ignored; they come from the schedule. An alias must name
  // a node that was added before.
  Node add_node(Lifetime memory, NodeRole role = NodeRole::kTemporary);

  // Adds a step; ids count from 0. build() reports mistakes in it.
  StepId add_step(Step step);

  // Builds the schedule. O(n log n) for n accesses. The builder is empty afterwards.
  //   kNotFound         an unknown step or node, or a node that the arena does not have
  //   kInvalidArgument  an empty buffer, or an alias outside the node it names
  //   kCycle            steps that wait for each other; the message names them
  Result<Schedule> build();

 private:
  Schedule::State& building();

  std::unique_ptr<Schedule::State> state_;
};

// The lifetimes of the nodes in levels, as input for plan(). Two nodes share bytes only if every step that uses one
// comes before every step that uses the other, in any order of execution.
//   - a node lives from the lowest level that uses it to the highest, inclusive;
//   - a node that is read before any step writes it is an input, and lives from level 0;
//   - an output lives until the last level;
//   - reuse_in_place is kept only where the step that ends the one node is the only one that begins the other.
// O(n log n) for n accesses.
std::vector<Lifetime> lifetimes_from_schedule(const Schedule& schedule);

}  // namespace berth
