// One call of GrowableMemory::defragment(): its budget, what it has done so far, and how it takes a block from its
// owner. Belongs to one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "berth/alloc/growable.h"
#include "memory/movable.h"
#include "memory/uses.h"

namespace berth::internal {

struct DefragmentPass {
  using Clock = std::chrono::steady_clock;

  // Blocks examined before other threads get the lock.
  static constexpr int kExaminedAtOnce = 64;

  const DefragmentOptions& options;
  Clock::time_point began = Clock::now();
  DefragmentResult result{};

  bool is_late() const {
    return options.max_time != std::chrono::nanoseconds::max() && Clock::now() - began >= options.max_time;
  }
  static void count(DefragmentResult::Stayed& stayed, std::size_t bytes) {
    ++stayed.count;
    stayed.bytes += bytes;
  }
  void fail(Error error, std::size_t bytes) {
    count(result.failed, bytes);
    if (!result.error) result.error = std::move(error);
  }
  // Takes the block of `owner` to move it; end_move() gives it back. False, and counted, if somebody holds or uses it.
  bool take(MovableOwner& owner, std::size_t bytes) {
    // Asked before the owner is closed, because the answer may need the lock of a queue, and a thread that has it may
    // be waiting for the owner to open.
    if (is_used(owner)) {
      count(result.in_use, bytes);
      return false;
    }
    if (!owner.begin_move()) {
      count(result.held, bytes);
      return false;
    }
    // Whoever recorded work in between has left a trace that can be read without a lock.
    if (is_reached(Timepoint{owner.last_use.load(std::memory_order_acquire)}) &&
        !owner.is_kept.load(std::memory_order_acquire))
      return true;
    owner.end_move();
    count(result.in_use, bytes);
    return false;
  }
  // Gives the block back to its owner, `taken` being when it was taken, and counts the move if one was `started`.
  void give_back(MovableOwner& owner, MovableOwner::Moved how, Clock::time_point taken, bool started,
                 const Result<void>& outcome, std::size_t bytes) {
    owner.end_move(how);
    result.longest_pause = std::max<std::chrono::nanoseconds>(result.longest_pause, Clock::now() - taken);
    if (!outcome) return fail(outcome.error(), bytes);
    if (!started) return;
    ++result.moved_count;
    result.moved_bytes += bytes;
  }
  // Completes a move that an earlier pass has left unfinished.
  void finish_earlier_move(MovableOwner& owner, std::size_t bytes) {
    if (auto held = owner.hold(); held)
      owner.let_go();
    else
      fail(held.error(), bytes);
  }
};

}  // namespace berth::internal
