// Waiting for the work that uses a block. The owner of a block stores one timepoint; queues that used the block at the
// same time keep a reference to the owner instead. A blocking copy must come after all of them. Work that is recorded
// and not submitted would never be over, so these functions submit it first. Any thread may call, without the lock of a
// queue.
#pragma once

#include <functional>

#include "berth/memory/queue.h"

namespace berth::internal {

// Blocks until `moment` is reached. If it is recorded and not submitted, submits what its queue has recorded. The error
// of the driver, if the work cannot be submitted or has failed.
Result<void> finish(Timepoint moment);

// Calls `visit(moment)` for the timepoints after which no work recorded so far uses the block: at most one per queue.
// Submits such work first. Stops at the first failure. O(1) if one queue uses the block, else O(queues).
Result<void> for_each_use(BlockOwner& owner, const std::function<Result<void>(Timepoint)>& visit);

// True if work that is recorded or submitted, and not over, uses the block. Neither submits nor waits. O(1) if one
// queue uses the block, else O(queues).
bool is_used(BlockOwner& owner);

// Queue::finish() without dropping what the queue has kept, for callers that hold a lock which the owner of a kept
// block may need. The next wait or submit drops it.
Result<void> finish_only(Queue& queue);

inline bool was_used(const BlockOwner& owner) noexcept {
  return owner.last_use.load(std::memory_order_acquire) != 0 || owner.is_kept.load(std::memory_order_acquire);
}

// Blocks until no work recorded so far uses the block.
inline Result<void> wait_for_uses(BlockOwner& owner) {
  if (!was_used(owner)) return {};
  return for_each_use(owner, [](Timepoint moment) { return wait(moment); });
}

// Delays what `queue` records from now on until then.
inline Result<void> wait_for_uses(Queue& queue, BlockOwner& owner) {
  if (!was_used(owner)) return {};
  return for_each_use(owner, [&](Timepoint moment) { return queue.wait_for(moment); });
}

}  // namespace berth::internal
