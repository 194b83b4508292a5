#include "memory/movable.h"

namespace berth::internal {

Result<void> MovableOwner::enter(bool for_good) {
  std::uint32_t seen = gate_.load(std::memory_order_acquire);
  while (true) {
    if ((seen & kMoving) != 0) {
      gate_.wait(seen, std::memory_order_acquire);
      seen = gate_.load(std::memory_order_acquire);
      continue;
    }
    if ((seen & kUnfinished) != 0) {
      // Whoever comes first completes the move; the others wait for it.
      if (!gate_.compare_exchange_weak(seen, seen | kMoving, std::memory_order_acq_rel)) continue;
      auto done = mover_->complete(*this);
      end_move(done ? Moved::kDone : Moved::kUnfinished);
      if (!done) return done;
      seen = gate_.load(std::memory_order_acquire);
      continue;
    }
    if (gate_.compare_exchange_weak(seen, for_good ? seen | kGiven : seen + 1, std::memory_order_acq_rel)) return {};
  }
}

bool MovableOwner::begin_move() noexcept {
  std::uint32_t free = 0;
  return gate_.compare_exchange_strong(free, kMoving, std::memory_order_acq_rel);
}

void MovableOwner::end_move(Moved moved) noexcept {
  gate_.store(moved == Moved::kDone ? 0 : kUnfinished, std::memory_order_release);
  gate_.notify_all();
}

}  // namespace berth::internal
