// What a Schedule holds; the builder fills it in, build() freezes it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/run/schedule.h"
#include "run/hazards.h"
#include "run/workers.h"

namespace berth {

struct Schedule::State {
  ScheduleOptions options{};

  // Steps.
  std::vector<std::string> labels{};
  std::vector<StepFunction> functions{};
  std::vector<RecordFunction> recorders{};
  std::vector<Device*> devices{};  // of the memory that each step writes first, or else reads; may be null
  std::vector<internal::Touch> touches{};
  std::vector<NodeId> touched_nodes{};        // for each touch; kNobody for a buffer
  std::vector<std::uint32_t> first_touch{0};  // of each step, and the end
  std::vector<internal::Edge> after{};
  std::vector<Buffer> memory{};  // what steps use, kept alive

  // Nodes.
  std::vector<Lifetime> nodes{};
  std::vector<NodeRole> roles{};
  std::vector<NodeId> roots{};                // the end of each alias chain
  std::vector<std::uint64_t> root_offsets{};  // where the node lies in its root
  std::vector<Buffer> node_memory{};          // once bound
  bool unbound = false;                       // some step uses a node without memory

  std::optional<Error> mistake{};  // the first, reported by build()

  // The graph.
  internal::StepGraph graph{};
  std::vector<std::uint32_t> levels{};  // of each step
  std::vector<StepId> by_level{};
  std::vector<std::uint32_t> first_of_level{0};
  std::vector<bool> reads_before_written{};  // for each touch
  std::uint32_t widest = 0;                  // steps of the largest level

  // The run.
  std::unique_ptr<internal::Workers> workers{};
  std::atomic<bool> running{false};
  std::vector<StepState> states{};
  Mutex mutex{};  // guards what follows
  std::optional<Error> error BERTH_GUARDED_BY(mutex){};
  StepId failed BERTH_GUARDED_BY(mutex) = 0;
  std::vector<StepId> running_on BERTH_GUARDED_BY(mutex){};  // the step running in each worker; kNobody
  bool check_overlaps = false;

  std::uint32_t step_count() const noexcept { return static_cast<std::uint32_t>(labels.size()); }
  std::span<const internal::Touch> touches_of(StepId step) const noexcept {
    return std::span(touches).subspan(first_touch[step], first_touch[step + 1] - first_touch[step]);
  }
  std::string describe(StepId step) const;

  // Finds edges and levels. `order` is the order in which effects must appear; `kept` as in find_hazards().
  Result<void> freeze(std::span<const StepId> order, std::span<const internal::Touch> kept);
  Error describe_cycle() const;
  void note_failure(StepId step, const Error& error);
  bool execute(StepId step, std::uint32_t worker, bool skip);
  Result<void> enter(StepId step, std::uint32_t worker);
  void leave(std::uint32_t worker);
};

}  // namespace berth
