// Runs steps in parallel such that no two steps that are running use the same bytes while one writes them. A step
// names what it reads and writes: buffers, nodes of an arena, or nodes that have no memory yet. Two steps conflict
// only if their byte ranges of one storage overlap and one of them writes; conflicting steps run in the order in
// which they were added, all others in parallel. A ScheduleBuilder belongs to one thread. A Schedule keeps the memory
// of its steps alive; its const functions may be called from any thread, and one run at a time.
//
//   ScheduleBuilder --build()--> Schedule --lifetimes_from_schedule()--> plan() --> Arena
//                                    |                                               |
//                                    +------------------- bind(arena) <--------------+  --> Schedule that runs
//
// A level is the length of the longest chain of steps before a step. Steps of one level never conflict. Steps do not
// wait for levels, only for the steps they depend on, so a level-3 step may run while a slow level-1 step still does.
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

// A node of a schedule whose memory comes later, from the arena it is bound to. Its id is its place in the lifetimes
// and in their plan.
struct Node {
  NodeId id = 0;
};

enum class NodeRole : std::uint8_t {
  kTemporary,  // lives from its first use to its last
  kOutput,     // lives on until the end of a run
};

// What a step uses.
class Operand {
 public:
  Operand(Buffer buffer) : what_(std::move(buffer)) {}
  Operand(Node node) : what_(node) {}
  // A node of an arena, looked up when the step is added.
  Operand(const Arena& arena, NodeId node) : what_(InArena{&arena, node}) {}

 private:
  friend class ScheduleBuilder;
  struct InArena {
    const Arena* arena;
    NodeId node;
  };
  std::variant<Buffer, Node, InArena> what_;
};

// What a step's function is told. Valid during the call.
struct StepRun {
  StepId step = 0;
  std::uint32_t worker = 0;         // no other step of this run is in the same worker now: a key for a queue or scratch
  std::span<const Buffer> nodes{};  // of the arena the schedule is bound to, by node id

  const Buffer& node(Node node) const noexcept { return nodes[node.id]; }
};

// Its accesses are over when it returns: work on a device's queue must be waited for, or ordered by that queue. An
// error or an exception makes the step fail.
using StepFunction = std::function<Result<void>(const StepRun&)>;

struct Step {
  std::string label = {};  // for messages
  std::vector<Operand> reads = {};
  std::vector<Operand> writes = {};
  std::vector<StepId> after = {};  // further steps to wait for, also ones that are added later
  StepFunction run = {};           // empty: nothing to do
};

struct ScheduleOptions {
  // Take dependencies from the bytes that steps use. Without it only Step::after counts, and the order is the
  // caller's duty; RunOptions::check_overlaps tells whether it was done. A schedule bound to an arena always does.
  bool dependencies_from_bytes = true;
};

struct RunOptions {
  // Steps that run at the same time at most; 0: one for each core. One worker runs everything on the calling thread.
  std::uint32_t workers = 0;
  // Checks before each step that no running step conflicts with it; if one does, the step fails with kInvalidUsage
  // that names both. Takes a lock for each step: for debugging.
  bool check_overlaps = false;
};

enum class StepState : std::uint8_t {
  kNotRun,   // no run yet
  kDone,     // returned success
  kFailed,   // returned an error or threw
  kSkipped,  // a step before it failed
};

class Schedule {
 public:
  Schedule(Schedule&&) noexcept;
  Schedule& operator=(Schedule&&) noexcept;
  ~Schedule();

  std::size_t step_count() const noexcept;
  std::size_t node_count() const noexcept;
  // Dependencies as they are kept, joins included (see docs/arena_and_schedule.md): O(n log n) for n accesses.
  std::size_t edge_count() const noexcept;
  std::uint32_t level_count() const noexcept;
  // Requires: step < step_count().
  std::uint32_t level_of(StepId step) const noexcept;
  std::string_view label_of(StepId step) const noexcept;
  // The steps of a level, ascending. Requires: level < level_count().
  std::span<const StepId> steps_of(std::uint32_t level) const noexcept;
  // The steps that this one waits for directly, ascending. For people and tests: O(edges). Requires: step <
  // step_count().
  std::vector<StepId> dependencies_of(StepId step) const;

  // Runs all steps and waits for them. Steps that depend on a failed one are skipped, all others run: what a failed
  // run leaves behind does not depend on timing. Then returns the error of the failed step with the lowest id, its
  // label before the sentence. The schedule can be run again after any outcome.
  //   kInvalidUsage     it is running already, also from one of its own steps; or a conflict was found (check_overlaps)
  //   kNotAllocated     some node has no memory yet: bind() first
  // O(steps + edges) besides the steps themselves; nothing is allocated for a step.
  Result<void> run(const RunOptions& options = {}) const;

  // How a step ended in the last run. Requires: step < step_count(), no run going on.
  StepState state_of(StepId step) const noexcept;

  // The same steps with every node in the arena: nodes that take turns in the same bytes are ordered by level. The
  // arena's plan must be for lifetimes_from_schedule() of this schedule. kInvalidArgument if a node would be
  // overwritten before its last use, naming it, which such a plan never does; kNotFound if the arena lacks a node.
  Result<Schedule> bind(const Arena& arena) const;

 private:
  friend class ScheduleBuilder;
  friend std::vector<Lifetime> lifetimes_from_schedule(const Schedule& schedule);
  struct State;
  explicit Schedule(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(ScheduleOptions options = {});
  ~ScheduleBuilder();
  ScheduleBuilder(ScheduleBuilder&&) noexcept;
  ScheduleBuilder& operator=(ScheduleBuilder&&) noexcept;

  // A node to be planned: everything of `memory` but first and last counts, which come from the schedule. An alias
  // must name a node that was added before.
  Node add_node(Lifetime memory, NodeRole role = NodeRole::kTemporary);

  // The next step; ids count from 0. Mistakes in it are reported by build().
  StepId add_step(Step step);

  // O(n log n) for n accesses. The builder is empty afterwards.
  //   kNotFound         a dependency on a step that is not there, a node that is not, or one an arena does not have
  //   kInvalidArgument  an empty buffer, or an alias outside the node it names
  //   kCycle            steps that wait for each other; the sentence names them
  Result<Schedule> build();

 private:
  std::unique_ptr<Schedule::State> state_;
};

// What to give plan(): the nodes' lifetimes in levels, so that two nodes share bytes only if every step that uses one
// comes before every step that uses the other, in whatever order the steps run.
//   - a node lives from the lowest level that uses it to the highest, inclusive;
//   - a node that is read before any step writes it is an input, and lives from level 0;
//   - an output lives until the last level;
//   - reuse_in_place is kept only where the step that ends the one node is the only one that begins the other.
// O(n log n) for n accesses.
std::vector<Lifetime> lifetimes_from_schedule(const Schedule& schedule);

}  // namespace berth
