// The table of timelines behind Timepoint. A timeline outlives its queue: the slot keeps the highest value reached, and
// the next queue that takes the slot continues from there, so an old timepoint stays reached. Any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "berth/base/mutex.h"
#include "berth/memory/timepoint.h"

namespace berth {
class Queue;
}  // namespace berth

namespace berth::internal {

struct Timeline {
  std::atomic<std::uint64_t> reached{0};
  Mutex mutex;
  CondVar idle;
  Queue* queue BERTH_GUARDED_BY(mutex) = nullptr;  // null when no queue owns the timeline
  int users BERTH_GUARDED_BY(mutex) = 0;           // threads inside a call on `queue`; its owner waits for them
};

// A free timeline for `queue`, or kNone if all 65,535 are in use.
TimelineId take_timeline(Queue& queue);
void give_timeline(TimelineId id) noexcept;

// Null for 0 and for a line that was never taken.
Timeline* find_timeline(TimelineId id) noexcept;

// Calls `visit` for every timeline that was ever taken. No lock is held during the call.
void for_each_timeline(const std::function<void(Timeline&)>& visit);

}  // namespace berth::internal
