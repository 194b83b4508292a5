// The table of queue lines behind Timepoint. A line outlives its queue: the slot keeps the highest value
// reached, and a new queue that takes the slot counts on from there, so an old moment stays reached.
// 65,535 queues may live at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace berth {

class Queue;

struct Timeline {
  std::atomic<std::uint64_t> reached{0};
  std::mutex mutex;
  std::condition_variable idle;
  Queue* queue = nullptr;  // null when no queue has the line
  int users = 0;           // threads inside a call on `queue`; its owner waits for them
};

// A free line for `queue`, or 0 when all are taken.
std::uint16_t take_timeline(Queue& queue);
void give_timeline(std::uint16_t id) noexcept;

// DryRun for 0 and for a line that was never taken.
Timeline* find_timeline(std::uint16_t id) noexcept;

}  // namespace berth
