#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "run/schedule_state.h"
#include "run/thrown_error.h"

namespace berth {

using namespace internal;

namespace internal {

Error thrown_error() {
  try {
    throw;
  } catch (const BadResult& bad) {
    return bad.error();
  } catch (const std::bad_alloc&) {
    return Error(Code::kOutOfMemory, Layer::kSchedule, "it threw std::bad_alloc: the host is out of memory");
  } catch (const std::exception& thrown) {
    return Error::with_text(Code::kDriver, Layer::kSchedule, std::string("it threw: ") + thrown.what());
  } catch (...) {
    return Error(Code::kDriver, Layer::kSchedule, "it threw an object that is not a std::exception");
  }
}

}  // namespace internal

Result<void> Schedule::run(const RunOptions& options) const {
  if (state_ == nullptr) return {};  // moved from: no steps
  State& state = *state_;
  if (state.unbound)
    return Error(Code::kNotAllocated, Layer::kSchedule,
                 "the schedule's {} nodes have no memory yet: make a plan and an arena, then run bind(arena)",
                 state.nodes.size());
  if (state.running.exchange(true, std::memory_order_acquire))
    return Error(Code::kInvalidUsage, Layer::kSchedule, "this schedule of {} steps is already running",
                 state.step_count());
  {
    const MutexLock lock(state.mutex);
    state.error.reset();
  }
  state.check_overlaps = options.check_overlaps;
  const std::uint32_t wanted = options.workers == 0 ? std::thread::hardware_concurrency() : options.workers;
  state.workers->run(
      std::min(wanted, state.widest),
      [](void* context, std::uint32_t step, std::uint32_t worker, bool skip) {
        return static_cast<State*>(context)->execute(step, worker, skip);
      },
      &state);
  std::optional<Error> error;
  StepId failed = 0;
  {
    const MutexLock lock(state.mutex);
    error = std::move(state.error);
    failed = state.failed;
  }
  state.running.store(false, std::memory_order_release);
  if (!error) return {};
  return Error::with_text(error->code(), error->layer(), state.describe(failed) + ": " + error->message());
}

bool Schedule::State::execute(StepId step, std::uint32_t worker, bool skip) {
  if (skip) {
    states[step] = StepState::kSkipped;
    return false;
  }
  if (check_overlaps) {
    if (auto entered = enter(step, worker); !entered) {
      note_failure(step, entered.error());
      return false;
    }
  }
  bool done = true;
  if (functions[step]) {
    try {
      if (auto result = functions[step]({.step = step, .worker = worker, .nodes = node_memory}); !result) {
        note_failure(step, result.error());
        done = false;
      }
    } catch (...) {
      note_failure(step, thrown_error());
      done = false;
    }
  }
  if (check_overlaps) leave(worker);
  if (done) states[step] = StepState::kDone;
  return done;
}

void Schedule::State::note_failure(StepId step, const Error& what) {
  states[step] = StepState::kFailed;
  const MutexLock lock(mutex);
  if (error && failed < step) return;
  error = what;
  failed = step;
}

Result<void> Schedule::State::enter(StepId step, std::uint32_t worker) {
  const MutexLock lock(mutex);
  for (const StepId other : running_on) {
    if (other == kNobody) continue;
    for (const Touch& mine : touches_of(step))
      for (const Touch& theirs : touches_of(other))
        if (conflict(mine, theirs))
          return Error::with_text(Code::kInvalidUsage, Layer::kSchedule,
                                  describe(other) + " is running and uses bytes [" + std::to_string(theirs.begin) +
                                      ", " + std::to_string(theirs.end) +
                                      ") of the same storage, of which this uses [" + std::to_string(mine.begin) +
                                      ", " + std::to_string(mine.end) +
                                      "), and one writes: order them with `after`, or by their bytes");
  }
  running_on[worker] = step;
  return {};
}

void Schedule::State::leave(std::uint32_t worker) {
  const MutexLock lock(mutex);
  running_on[worker] = kNobody;
}

}  // namespace berth
