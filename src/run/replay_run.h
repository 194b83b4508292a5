// The state of one run while it follows a plan. It hands out offsets in the arena and knows which are live; it has no
// lock and no memory of its own. While the run follows the recording, a cursor over the plan's steps is all the state
// there is: the plan is valid, so what it says is free is free. At the first difference the live slots are written
// down once, and from then on every slot is checked against them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "run/replay_plan.h"

namespace berth::internal::replay {

inline constexpr std::uint32_t kNoRequest = ReplayRequest::kNeverReleased;

// A live range of the arena.
struct LiveSlot {
  std::uint64_t begin, end;
  std::uint64_t trace;    // whose request it is: ReplayPlan::trace_id
  std::uint32_t request;  // its number in that trace
  std::uint32_t number;   // its number in the log of the run that is in progress; kNoRequest: of an earlier run
};

class PlannedRun {
 public:
  // Makes room for a run of `plan`, so that following it allocates nothing.
  void reserve(const ReplayPlan& plan);

  // Starts following `plan`. Slots of earlier runs that are still live stay live.
  void begin(const ReplayPlan& plan) noexcept;
  // Stops following it. Live slots stay live. `with_log`: take_log() may be called.
  void end(bool with_log) noexcept;
  // Checks every slot from now on.
  void distrust() noexcept;

  struct Served {
    std::uint64_t offset = kNoOffset;   // kNoOffset: not from the arena
    std::uint32_t number = kNoRequest;  // in the log
    bool kept = false;                  // the plan leaves this one to the pool
    bool reordered = false;
  };
  // Requires: begin() was called.
  Served request(std::uint64_t bytes, std::uint64_t alignment) noexcept {
    if (exact_ && cursor_ != steps_end_) {
      const Step& step = *cursor_;
      // In [at_least, step.bytes], which is [0, 0] for a release and one size unless the plan is predicted.
      if (bytes - step.at_least <= step.bytes - step.at_least && alignment <= step.alignment) {
        if (bytes != step.bytes) note_smaller(step.request, bytes);
        ++cursor_;
        return {.offset = step.offset, .number = step.request, .kept = step.offset == kNoOffset, .reordered = false};
      }
    }
    return request_checked(bytes, alignment);
  }
  // Takes an offset back. False: nothing is live there. May be called at any time.
  bool release(std::uint64_t offset) noexcept {
    if (exact_ && cursor_ != steps_end_ && cursor_->bytes == 0 && cursor_->offset == offset) {
      ++cursor_;
      return true;
    }
    return release_checked(offset);
  }
  // A release of a request that the pool served, by its number in the log.
  void release_pooled(std::uint32_t number) noexcept;

  // The bytes of the request that is live at this offset; 0: none.
  std::uint64_t size_at(std::uint64_t offset) const noexcept;

  // What the run did, in the form of a recording. Requires: end(), with a log unless the run deviated. Empty if there
  // was no memory to keep it.
  ReplayTrace take_log() noexcept;
  // True if the run made requests that were smaller than predicted.
  bool was_smaller() const noexcept { return !smaller_.empty(); }
  const std::vector<LiveSlot>& live() const noexcept { return live_; }
  // The log of the run that is ending becomes trace `trace`: the run's live slots take their numbers in it.
  void adopt_log_numbers(std::uint64_t trace) noexcept;
  // Forgets all live slots: the arena has been retired.
  std::vector<LiveSlot> take_live() noexcept;

 private:
  Served request_checked(std::uint64_t bytes, std::uint64_t alignment) noexcept;
  bool release_checked(std::uint64_t offset) noexcept;
  void log_release(std::uint32_t number) noexcept;
  void note_smaller(std::uint32_t request, std::uint64_t bytes) noexcept;
  // Among the next `tries` requests of the plan that were not made yet.
  std::uint32_t find_in_order(std::uint64_t bytes, std::uint64_t alignment, std::uint32_t tries) const noexcept;
  std::uint32_t find_by_size(std::uint64_t bytes, std::uint64_t alignment) noexcept;
  bool is_free(std::uint64_t begin, std::uint64_t end) const noexcept;

  const ReplayPlan* plan_ = nullptr;
  const Step* cursor_ = nullptr;
  const Step* steps_end_ = nullptr;
  bool exact_ = false;

  std::vector<LiveSlot> live_;        // by begin; complete unless exact_
  std::vector<std::uint8_t> served_;  // by request
  // Requests that were smaller than predicted, while exact_: number and bytes.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> smaller_;
  std::vector<std::uint32_t> class_next_;  // first index of the class that may not be served yet
  ReplayTrace log_;
  bool log_lost_ = false;
};

}  // namespace berth::internal::replay
