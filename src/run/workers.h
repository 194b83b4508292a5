// Executes a graph of steps on several threads. Made once for a graph; run() may be called again and again and
// allocates nothing for a step. One run at a time.
//
// Each step enters the list of ready steps at most once a run, so the list is an array: a worker takes the next place
// with one addition and waits there until a step is put into it. A worker that finishes a step goes on with one of the
// steps that became ready, without the list. The calling thread is worker 0; the others are tasks of oneTBB, which may
// come late or not at all: the run needs none of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "run/hazards.h"

namespace berth {

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
  // `graph` outlives this and has no cycle.
  explicit Workers(const StepGraph& graph);
  ~Workers();

  // Calls execute(step, worker, skip) once for each step, after all its predecessors. It returns whether the step
  // succeeded; all that come after one that did not are called with skip = true, and count as failed.
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

}  // namespace berth
