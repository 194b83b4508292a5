// Executes a graph of steps on several threads. Created once per graph; run() may be called repeatedly and allocates
// nothing per step. One run at a time.
//
// Each step enters the list of ready steps at most once per run, so the list is an array: a worker takes the next index
// with one atomic addition and waits there until a step is stored. A worker that finishes a step continues with one of
// the steps that became ready, without using the list. The calling thread is worker 0. The others are tasks of oneTBB,
// which may start late or never: the run does not need them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "run/hazards.h"

namespace berth::internal {

// Successors of each node: targets[first[n] .. first[n + 1]). Nodes from `steps` on are joins.
struct StepGraph {
  std::uint32_t steps = 0;
  std::uint32_t nodes = 0;
  std::vector<std::uint32_t> first{};
  std::vector<std::uint32_t> targets{};
  std::vector<std::uint32_t> waits_for{};  // number of predecessors

  StepGraph() = default;
  StepGraph(std::uint32_t step_count, std::uint32_t node_count, std::span<const Edge> edges);
};

class Workers {
 public:
  // Requires: `graph` outlives this object and has no cycle.
  explicit Workers(const StepGraph& graph);
  ~Workers();

  // Calls execute(step, worker, skip) once per step, after all its predecessors. It returns whether the step succeeded.
  // Steps after a failed one are called with skip = true and count as failed.
  using Execute = bool (*)(void* context, std::uint32_t step, std::uint32_t worker, bool skip);
  void run(std::uint32_t workers, Execute execute, void* context);

  static constexpr std::uint32_t kMost = 256;

 private:
  struct Shared;
  struct Register;
  class Task;
  std::shared_ptr<Shared> shared_;
  std::uint64_t id_ = 0;
};

}  // namespace berth::internal
