#include "berth/memory/queue.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/atomic_peak.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "memory/timelines.h"
#include "memory/uses.h"

namespace berth {

using namespace internal;

namespace {

// Keeps the queue of a timeline alive while a thread polls it or waits for it.
class LineUse {
 public:
  explicit LineUse(Timeline& timeline) : timeline_(timeline), queue_(enter(timeline)) {}
  ~LineUse() {
    if (queue_ != nullptr) leave(timeline_);
  }
  LineUse(const LineUse&) = delete;
  LineUse& operator=(const LineUse&) = delete;
  Queue* queue() const noexcept { return queue_; }

 private:
  // Not in the constructor and the destructor: the thread-safety analysis leaves those out.
  static Queue* enter(Timeline& timeline) {
    const MutexLock lock(timeline.mutex);
    if (timeline.queue != nullptr) ++timeline.users;
    return timeline.queue;
  }
  static void leave(Timeline& timeline) {
    const MutexLock lock(timeline.mutex);
    if (--timeline.users == 0) timeline.idle.notify_all();
  }

  Timeline& timeline_;
  Queue* const queue_;
};

bool overlap(const Window& a, const Window& b) noexcept {
  return a.bytes > 0 && b.bytes > 0 && a.block.handle == b.block.handle && a.device == b.device &&
         a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

Queue::Queue(Device& device) : device_(&device), timeline_(take_timeline(*this)), submitted_(0) {
  if (Timeline* timeline = find_timeline(timeline_)) submitted_ = timeline->reached.load(std::memory_order_acquire);
  // A function of its own: the thread-safety analysis leaves constructors out.
  const auto enlist = [this, &device] {
    const MutexLock lock(device.queues_mutex_);
    device.queues_.push_back(this);
  };
  try {
    enlist();
  } catch (...) {
    give_timeline(timeline_);
    throw;
  }
}

Queue::~Queue() {
  close();
}

void Queue::close() noexcept {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  {
    const MutexLock lock(device_->queues_mutex_);
    std::erase(device_->queues_, this);
  }
  // A failure here means that the device is lost; its work is over in any case.
  static_cast<void>(do_wait(submitted_));
  // Recorded work that was never submitted will not run, so the timepoint of its uses is reached too.
  note_reached(submitted_ + 1);
  drop_reached(timeline_);
  give_timeline(timeline_);
}

Result<void> Queue::check(const Window& window, Usage usage, bool writes) const {
  if (window.bytes > window.block.bytes || window.offset > window.block.bytes - window.bytes)
    return Error(Code::kInvalidView, Layer::kQueue, "window at {} of {} bytes is outside the block's {} bytes",
                 window.offset, window.bytes, window.block.bytes);
  if (window.device != nullptr && !device_->reaches(*window.device))
    return Error(
        Code::kUnsupported, Layer::kQueue,
        "{} bytes of a device that this queue cannot reach; use Buffer::copy_from, which goes through the host",
        window.bytes);
  if (writes && window.block.has(BlockFlags::kReadOnly))
    return Error(Code::kReadOnly, Layer::kQueue,
                 "a window of {} bytes is read-only memory; copy it into a buffer of its own first", window.bytes);
  if (!allows(window.block.usage, usage))
    return Error(Code::kInvalidUsage, Layer::kQueue,
                 "the block was made with usage bits {} and this needs {}; ask for them in BufferOptions::usage",
                 static_cast<int>(window.block.usage), static_cast<int>(usage));
  return {};
}

// Called before an operation is recorded: afterwards it could no longer be refused.
Result<void> Queue::make_room(std::size_t owners) {
  if (executes_at_once() || kept_.capacity() - kept_.size() >= owners) return {};
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(std::exchange(taken_, 0)));
  try {
    if (kept_.capacity() - kept_.size() < owners) kept_.reserve(2 * kept_.size() + owners + 8);
  } catch (const std::bad_alloc&) {
    return Error(Code::kOutOfMemory, Layer::kQueue, "no host memory to record the use of {} windows", owners);
  }
  return {};
}

void Queue::stamp(const Window& window) noexcept {
  recorded_ = true;
  if (Residency* residency = device_->residency()) residency->touch(window.block);
  if (window.owner == nullptr || executes_at_once()) return;
  std::atomic<std::uint64_t>& last_use = window.owner->last_use;
  const Timepoint now = next();
  std::uint64_t before = last_use.load(std::memory_order_acquire);
  while (true) {
    const Timepoint other{before};
    if (other.timeline() != timeline_ && !is_reached(other)) {
      // One word cannot hold the timepoints of two queues: keep the memory alive until ours is reached.
      window.owner->retain();
      kept_.push_back({window.owner, now.value()});  // make_room() was called
      keeps_.store(true, std::memory_order_release);
      window.owner->is_kept.store(true, std::memory_order_release);
      return;
    }
    if (last_use.compare_exchange_weak(before, now.bits, std::memory_order_acq_rel)) return;
  }
}

void Queue::note_reached(std::uint64_t value) noexcept {
  if (Timeline* timeline = find_timeline(timeline_)) raise_to(timeline->reached, value, std::memory_order_acq_rel);
}

BlockOwner* Queue::take_kept(std::uint64_t value) noexcept {
  const MutexLock lock(mutex_);
  if (taken_ == kept_.size() || kept_[taken_].until > value) return nullptr;
  BlockOwner* const owner = kept_[taken_++].owner;
  if (taken_ == kept_.size()) {
    kept_.clear();
    taken_ = 0;
    keeps_.store(false, std::memory_order_release);
  }
  return owner;
}

// One owner at a time, and outside of every lock: a drop may free memory of a device, and may call the user, who may
// destroy this queue. A LineUse around the drop would make the queue's destructor wait for this thread forever.
void Queue::drop_reached(TimelineId id) noexcept {
  Timeline* const timeline = find_timeline(id);
  if (timeline == nullptr) return;
  while (true) {
    BlockOwner* owner = nullptr;
    {
      const LineUse use(*timeline);
      if (use.queue() != nullptr && use.queue()->keeps_.load(std::memory_order_acquire))
        owner = use.queue()->take_kept(timeline->reached.load(std::memory_order_acquire));
    }
    if (owner == nullptr) return;
    owner->drop();
  }
}

Result<void> Queue::write(const Window& target, std::span<const std::byte> source) {
  if (source.size() != target.bytes)
    return Error(Code::kSizeMismatch, Layer::kQueue, "{} bytes to write into a window of {}", source.size(),
                 target.bytes);
  BERTH_TRY(check(target, Usage::kCopyTarget, true));
  if (source.empty()) return {};
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(1));
  BERTH_TRY(do_write(target, source));
  stamp(target);
  return {};
}

Result<void> Queue::read(const Window& source, std::span<std::byte> target) {
  if (target.size() != source.bytes)
    return Error(Code::kSizeMismatch, Layer::kQueue, "a window of {} bytes to read into {}", source.bytes,
                 target.size());
  BERTH_TRY(check(source, Usage::kCopySource, false));
  if (target.empty()) return {};
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(1));
  BERTH_TRY(do_read(source, target));
  stamp(source);
  return {};
}

Result<void> Queue::copy(const Window& source, const Window& target) {
  if (source.bytes != target.bytes)
    return Error(Code::kSizeMismatch, Layer::kQueue, "a window of {} bytes to copy into one of {}", source.bytes,
                 target.bytes);
  BERTH_TRY(check(source, Usage::kCopySource, false));
  BERTH_TRY(check(target, Usage::kCopyTarget, true));
  if (source.bytes == 0) return {};
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(2));
  BERTH_TRY(do_copy(source, target));
  stamp(source);
  stamp(target);
  return {};
}

Result<void> Queue::fill(const Window& target, std::uint8_t value) {
  BERTH_TRY(check(target, Usage::kCopyTarget, true));
  if (target.bytes == 0) return {};
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(1));
  BERTH_TRY(do_fill(target, value));
  stamp(target);
  return {};
}

Result<void> Queue::copy_rows(const Window& source, std::size_t source_pitch, const Window& target,
                              std::size_t target_pitch, std::size_t row_bytes, std::size_t rows) {
  BERTH_TRY(check(source, Usage::kCopySource, false));
  BERTH_TRY(check(target, Usage::kCopyTarget, true));
  if (rows == 0 || row_bytes == 0) return {};
  const auto fits = [&](const Window& window, std::size_t pitch) {
    return pitch >= row_bytes && window.bytes >= row_bytes && (rows - 1) <= (window.bytes - row_bytes) / pitch;
  };
  if (!fits(source, source_pitch) || !fits(target, target_pitch))
    return Error(Code::kInvalidView, Layer::kQueue, "{} rows of {} bytes do not fit into windows of {} and {} bytes",
                 rows, row_bytes, source.bytes, target.bytes);
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(2));
  BERTH_TRY(do_copy_rows(source, source_pitch, target, target_pitch, row_bytes, rows));
  stamp(source);
  stamp(target);
  return {};
}

Result<void> Queue::launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                           std::span<const std::byte> constants) {
  if (kernel == nullptr) return Error(Code::kInvalidArgument, Layer::kQueue, "a launch without a kernel");
  for (const KernelArgument& argument : arguments)
    BERTH_TRY(check(argument.window, Usage::kKernel, argument.access != Access::kRead));
  // Kernels have few arguments, so all pairs are checked.
  for (std::size_t i = 0; i < arguments.size(); ++i)
    for (std::size_t j = i + 1; j < arguments.size(); ++j) {
      const bool writes = arguments[i].access != Access::kRead || arguments[j].access != Access::kRead;
      if (writes && overlap(arguments[i].window, arguments[j].window))
        return Error(Code::kInvalidArgument, Layer::kQueue,
                     "arguments {} and {} overlap and one is written; pass one window, or mark both kRead", i, j);
    }
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(arguments.size()));
  BERTH_TRY(do_launch(kernel, arguments, grid, constants));
  for (const KernelArgument& argument : arguments) stamp(argument.window);
  recorded_ = true;
  return {};
}

Result<void> Queue::record_native(std::span<const Window> uses,
                                  const std::function<Result<void>(void* native)>& record) {
  // The device treats an exception as any other failure in the middle of a recording; then it is passed on.
  std::exception_ptr thrown;
  const auto guarded = [&](void* native) -> Result<void> {
    try {
      return record(native);
    } catch (...) {
      thrown = std::current_exception();
      return Error(Code::kCancelled, Layer::kQueue, "a record function threw an exception");
    }
  };
  const MutexLock lock(mutex_);
  BERTH_TRY(make_room(uses.size()));
  auto recorded = do_record_native(uses, guarded);
  if (thrown) std::rethrow_exception(thrown);
  if (!recorded) return recorded;
  for (const Window& window : uses) stamp(window);
  recorded_ = true;
  return {};
}

Result<void> Queue::wait_for(Timepoint moment) {
  if (moment.timeline() == timeline_ || is_reached(moment)) return {};
  {
    const LineUse use(*find_timeline(moment.timeline()));
    if (use.queue() == nullptr) return {};
    if (const std::uint64_t last = use.queue()->submitted_.load(std::memory_order_acquire); moment.value() > last)
      return Error(Code::kInvalidArgument, Layer::kQueue,
                   "timepoint {} of another queue is not submitted yet (the last is {}); call its submit() first",
                   moment.value(), last);
  }
  const MutexLock lock(mutex_);
  BERTH_TRY(do_wait_for(moment));
  // The next submit has a timepoint of its own even if nothing else is recorded: it is reached after `moment`.
  recorded_ = true;
  return {};
}

Result<Timepoint> Queue::submit_recorded() {
  Residency* const residency = device_->residency();
  while (true) {
    // Committed outside the lock, because the set's callback is the user's code and placing memory takes long. Another
    // thread may record work with memory of its own meanwhile, so the set is tested again inside the lock.
    if (residency != nullptr) BERTH_TRY(residency->commit());
    const MutexLock lock(mutex_);
    if (residency != nullptr && residency->has_pending()) continue;
    if (recorded_ && !closed_) {
      const std::uint64_t value = submitted_.load(std::memory_order_relaxed) + 1;
      BERTH_TRY(do_submit(value));
      submitted_.store(value, std::memory_order_release);
      recorded_ = false;
      if (executes_at_once()) note_reached(value);
    }
    return Timepoint::at(timeline_, submitted_.load(std::memory_order_relaxed));
  }
}

Result<Timepoint> Queue::submit() {
  BERTH_TRY_ASSIGN(const Timepoint moment, submit_recorded());
  // A program that never waits on this queue must not keep released buffers forever.
  if (keeps_.load(std::memory_order_acquire)) {
    note_reached(poll());
    drop_reached(moment.timeline());
  }
  return moment;
}

Result<void> Queue::wait_only(Timepoint moment) {
  if (is_reached(moment)) return {};
  {
    const MutexLock lock(mutex_);
    if (moment.value() > submitted_)
      return Error(Code::kInvalidArgument, Layer::kQueue,
                   "timepoint {} of this queue is not submitted yet (the last is {}); call submit() first",
                   moment.value(), submitted_.load(std::memory_order_relaxed));
  }
  BERTH_TRY(do_wait(moment.value()));
  note_reached(moment.value());
  return {};
}

Result<void> Queue::wait(Timepoint moment) {
  if (moment.timeline() != timeline_) return berth::wait(moment);
  BERTH_TRY(wait_only(moment));
  if (keeps_.load(std::memory_order_acquire)) drop_reached(moment.timeline());
  return {};
}

Result<void> Queue::wait_submitted() {
  Timepoint last;
  {
    const MutexLock lock(mutex_);
    last = Timepoint::at(timeline_, submitted_);
  }
  return wait(last);
}

Result<void> Queue::finish() {
  BERTH_TRY_ASSIGN(const Timepoint moment, submit());
  return wait(moment);
}

Result<void> Queue::do_copy_rows(const Window& source, std::size_t source_pitch, const Window& target,
                                 std::size_t target_pitch, std::size_t row_bytes, std::size_t rows) {
  Window from = source, to = target;
  from.bytes = to.bytes = row_bytes;
  for (std::size_t row = 0; row < rows; ++row) {
    BERTH_TRY(do_copy(from, to));
    from.offset += source_pitch;
    to.offset += target_pitch;
  }
  return {};
}

Result<void> Queue::do_launch(const Kernel&, std::span<const KernelArgument>, const Grid&, std::span<const std::byte>) {
  return Error(Code::kUnsupported, Layer::kQueue, "this device runs no kernels");
}

Result<void> Queue::do_record_native(std::span<const Window>, const std::function<Result<void>(void* native)>&) {
  return Error(Code::kUnsupported, Layer::kQueue, "this device has no native encoder");
}

Result<void> Queue::do_wait_for(Timepoint moment) {
  return berth::wait(moment);
}

bool is_reached(Timepoint moment) noexcept {
  Timeline* timeline = find_timeline(moment.timeline());
  if (timeline == nullptr) return true;
  if (timeline->reached.load(std::memory_order_acquire) >= moment.value()) return true;
  const LineUse use(*timeline);
  // The queue was closed in between, so all its timepoints are reached.
  if (use.queue() == nullptr) return timeline->reached.load(std::memory_order_acquire) >= moment.value();
  raise_to(timeline->reached, use.queue()->poll(), std::memory_order_acq_rel);
  return timeline->reached.load(std::memory_order_acquire) >= moment.value();
}

Result<void> wait(Timepoint moment) {
  if (is_reached(moment)) return {};
  {
    const LineUse use(*find_timeline(moment.timeline()));
    if (use.queue() != nullptr) BERTH_TRY(use.queue()->wait_only(moment));
  }
  Queue::drop_reached(moment.timeline());
  return {};
}

Result<void> Device::synchronize() {
  if (Queue* queue = default_queue_.load(std::memory_order_acquire)) BERTH_TRY(queue->finish());
  // The lock is not held while queues are waited for: what they kept is dropped then, and that may call the user, who
  // may destroy a queue of this device.
  std::vector<TimelineId> timelines;
  {
    const MutexLock lock(queues_mutex_);
    timelines.reserve(queues_.size());
    for (const Queue* queue : queues_) timelines.push_back(queue->timeline());
  }
  Result<void> outcome;
  for (const TimelineId id : timelines) {
    {
      // A queue that is destroyed meanwhile waits for its own work.
      const LineUse use(*find_timeline(id));
      if (use.queue() != nullptr) {
        const auto last = Timepoint::at(id, use.queue()->submitted_.load(std::memory_order_acquire));
        if (auto waited = use.queue()->wait_only(last); !waited && outcome) outcome = std::move(waited);
      }
    }
    Queue::drop_reached(id);
  }
  BERTH_TRY(outcome);
  free_reached(true);
  return {};
}

namespace internal {

// The part of uses.h that needs the members of Queue.
struct QueueUses {
  // Submits the work of `moment` unless that is done. Returns a timepoint that is reached when the work is done.
  static Result<Timepoint> submit(Timepoint moment) {
    if (is_reached(moment)) return Timepoint();
    const LineUse use(*find_timeline(moment.timeline()));
    if (use.queue() == nullptr) return Timepoint();
    if (moment.value() <= use.queue()->submitted_.load(std::memory_order_acquire)) return moment;
    return use.queue()->submit_recorded();
  }

  static Result<void> finish_only(Queue& queue) {
    BERTH_TRY_ASSIGN(const Timepoint moment, queue.submit_recorded());
    return queue.wait_only(moment);
  }

  // The last timepoint for which the queue keeps this owner, or one that is always reached.
  static Timepoint last_kept(Timeline& timeline, const BlockOwner& owner) {
    const LineUse use(timeline);
    if (use.queue() == nullptr || !use.queue()->keeps_.load(std::memory_order_acquire)) return {};
    Queue& queue = *use.queue();
    const MutexLock lock(queue.mutex_);
    for (std::size_t i = queue.kept_.size(); i-- > queue.taken_;)
      if (queue.kept_[i].owner == &owner) return Timepoint::at(queue.timeline_, queue.kept_[i].until);
    return {};
  }
};

Result<void> finish_only(Queue& queue) {
  return QueueUses::finish_only(queue);
}

Result<void> finish(Timepoint moment) {
  BERTH_TRY_ASSIGN(const Timepoint submitted, QueueUses::submit(moment));
  return wait(submitted);
}

bool is_used(BlockOwner& owner) {
  if (!is_reached(Timepoint{owner.last_use.load(std::memory_order_acquire)})) return true;
  if (!owner.is_kept.exchange(false, std::memory_order_acq_rel)) return false;
  bool used = false;
  for_each_timeline([&](Timeline& timeline) { used = used || !is_reached(QueueUses::last_kept(timeline, owner)); });
  if (used) owner.is_kept.store(true, std::memory_order_release);
  return used;
}

Result<void> for_each_use(BlockOwner& owner, const std::function<Result<void>(Timepoint)>& visit) {
  BERTH_TRY_ASSIGN(const Timepoint last, QueueUses::submit(Timepoint{owner.last_use.load(std::memory_order_acquire)}));
  if (last != Timepoint()) BERTH_TRY(visit(last));
  // Cleared before the search: a queue that keeps the owner from now on sets it again.
  if (!owner.is_kept.exchange(false, std::memory_order_acq_rel)) return {};
  Result<void> outcome;
  bool kept = false;
  for_each_timeline([&](Timeline& timeline) {
    const Timepoint found = QueueUses::last_kept(timeline, owner);
    if (found == Timepoint()) return;
    kept = true;
    if (!outcome) return;
    auto submitted = QueueUses::submit(found);
    outcome = submitted ? visit(*submitted) : Result<void>(submitted.error());
  });
  if (kept) owner.is_kept.store(true, std::memory_order_release);
  return outcome;
}

}  // namespace internal

}  // namespace berth
