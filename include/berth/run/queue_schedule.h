// Runs a schedule on queues: steps record their work and return, and the host waits for nothing. Which step waits for
// which follows from the bytes they name, as in Schedule; a dependency becomes the order within a queue, or a wait of
// one queue for another. Waits that other waits imply are left out, so that no wait can be removed. One thread calls a
// QueueSchedule at a time. It keeps its queues and the memory of its steps alive.
//
//   auto schedule = builder.build().value();                       // steps with Step::record
//   auto on_queues = berth::QueueSchedule::make(std::move(schedule), {first, second}).value();
//   const berth::Timepoint done = on_queues.run().value();         // nothing is waited for
//
// A step with Step::run instead of Step::record is a host function: the host waits for what it depends on and calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "berth/run/schedule.h"

namespace berth {

// What a rule knows when it chooses the queue of a step. Valid during the call.
struct QueueChoice {
  StepId step = 0;
  std::uint32_t suggested = 0;             // what the default rule chooses
  std::span<const std::uint32_t> allowed;  // queues of the step's device, ascending; never empty
  std::span<const std::uint32_t> steps;    // on each queue so far
};

struct QueueScheduleOptions {
  // Chooses a queue for each step, once, when the schedule is made. Empty: the default rule, which continues the queue
  // on which a dependency of the step is the newest step, and otherwise takes the queue with the fewest steps.
  std::function<std::uint32_t(const QueueChoice&)> rule{};
};

class QueueSchedule {
 public:
  // Assigns the steps to the queues and finds the waits. A step goes to a queue of the device of its memory: of the
  // first buffer that it writes, or else reads; a step without memory goes to any.
  //   kInvalidArgument  no queue, an empty pointer, no queue of a step's device, or a rule that chose another queue
  //   kNotAllocated     a node has no memory yet: call Schedule::bind() first
  // O((steps + edges) x queues).
  static Result<QueueSchedule> make(Schedule schedule, std::vector<QueuePtr> queues,
                                    const QueueScheduleOptions& options = {});
  QueueSchedule(QueueSchedule&&) noexcept;
  QueueSchedule& operator=(QueueSchedule&&) noexcept;
  ~QueueSchedule();

  // Records and submits all steps. Returns a timepoint that is reached when all of them are done. A run is ordered
  // after the run before it. If a step fails, the steps after it are not recorded, those before it are waited for, and
  // the error is returned with the label of the step; the schedule can be run again. O(steps + waits), nothing is
  // allocated per step.
  Result<Timepoint> run();

  const Schedule& schedule() const noexcept;
  // Requires: step < schedule().step_count().
  std::uint32_t queue_of(StepId step) const noexcept;
  // The steps in the order in which they are recorded.
  std::span<const StepId> order() const noexcept;
  // The steps on other queues that the queue of `step` waits for just before it.
  std::span<const StepId> waits_of(StepId step) const noexcept;
  // All waits of one queue for another in a run, without those at its end.
  std::size_t wait_count() const noexcept;

 private:
  struct State;
  explicit QueueSchedule(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace berth
