// The state of one run while it follows a plan. It hands out offsets in the arena and knows which are live; it has no
// lock and no memory of its own. While the run follows the recording, a cursor over the plan's steps is all the state
// there is: the plan is valid, so what it says is free is free. At the first difference the live slots are written
// down once, and from then on every slot is checked against them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "run/replay_plan.h"

namespace berth::internal::replay {

inline constexpr std::uint32_t kNoRequest = ReplayRequest::kNeverReleased;

// A live range of the arena.
struct LiveSlot {
  std::uint64_t begin, end;
  const ReplayPlan* plan;  // whose request it is; compared, never followed: the plan may be gone
  std::uint32_t request;   // its number in that plan
  std::uint32_t number;    // its number in the log of the run that is in progress; kNoRequest: of an earlier run
};

class PlannedRun {
 public:
  // Makes room for a run of `plan`, so that following it allocates nothing.
  void reserve(const ReplayPlan& plan);

  // Starts following `plan`. Slots of earlier runs that are still live stay live.
  void begin(const ReplayPlan& plan) noexcept;
  // Stops following it. Live slots stay live.
  void end() noexcept;
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
      if (step.bytes == bytes && alignment <= step.alignment) {
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

  // What the run did, in the form of a recording. Requires: end(). Empty if there was no memory to keep it.
  ReplayTrace take_log() noexcept;
  const std::vector<LiveSlot>& live() const noexcept { return live_; }
  // `plan` is about to be made anew from the log of the run that is ending: its live slots take their log's numbers.
  void adopt_log_numbers(const ReplayPlan* plan) noexcept;
  // Slots of plan `old` become slots of the plan that replaces it, which numbers its requests alike.
  void replace_plan(const ReplayPlan* old, const ReplayPlan* replacement) noexcept;
  // Forgets all live slots: the arena has been retired.
  std::vector<LiveSlot> take_live() noexcept;

 private:
  Served request_checked(std::uint64_t bytes, std::uint64_t alignment) noexcept;
  bool release_checked(std::uint64_t offset) noexcept;
  void log_release(std::uint32_t number) noexcept;
  bool is_free(std::uint64_t begin, std::uint64_t end) const noexcept;

  const ReplayPlan* plan_ = nullptr;
  const Step* cursor_ = nullptr;
  const Step* steps_end_ = nullptr;
  bool exact_ = false;

  std::vector<LiveSlot> live_;             // by begin; complete unless exact_
  std::vector<std::uint8_t> served_;       // by request
  std::vector<std::uint32_t> class_next_;  // first index of the class that may not be served yet
  ReplayTrace log_;
  bool log_lost_ = false;
};

}  // namespace berth::internal::replay
