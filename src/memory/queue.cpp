#include "berth/memory/queue.h"

#include <algorithm>
#include <cassert>

#include "base/atomic_peak.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "memory/timelines.h"

namespace berth {

using namespace internal;

namespace {

// Keeps the queue of a timeline alive while a thread polls it or waits for it.
class LineUse {
 public:
  explicit LineUse(Timeline& timeline) : timeline_(timeline) {
    const MutexLock lock(timeline.mutex);
    queue_ = timeline.queue;
    if (queue_ != nullptr) ++timeline.users;
  }
  ~LineUse() {
    if (queue_ == nullptr) return;
    const MutexLock lock(timeline_.mutex);
    if (--timeline_.users == 0) timeline_.idle.notify_all();
  }
  LineUse(const LineUse&) = delete;
  LineUse& operator=(const LineUse&) = delete;
  Queue* queue() const noexcept { return queue_; }

 private:
  Timeline& timeline_;
  Queue* queue_;
};

bool overlap(const Window& a, const Window& b) noexcept {
  return a.bytes > 0 && b.bytes > 0 && a.block.handle == b.block.handle && a.device == b.device &&
         a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

Queue::Queue(Device& device) : device_(&device), timeline_(take_timeline(*this)), submitted_(0) {
  if (Timeline* timeline = find_timeline(timeline_)) submitted_ = timeline->reached.load(std::memory_order_acquire);
  const MutexLock lock(device.queues_mutex_);
  device.queues_.push_back(this);
}

Queue::~Queue() {
  close();
}

void Queue::close() noexcept {
  if (closed_) return;
  closed_ = true;
  {
    const MutexLock lock(device_->queues_mutex_);
    std::erase(device_->queues_, this);
  }
  // A failure here means that the device is lost; its work is over in any case.
  static_cast<void>(do_wait(submitted_));
  // Recorded work that was never submitted will not run, so the timepoint of its uses is reached too.
  note_reached(submitted_ + 1);
  let_go_of_reached();
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

void Queue::stamp(const Window& window) {
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
      kept_.push_back({window.owner, now.value()});
      return;
    }
    if (last_use.compare_exchange_weak(before, now.bits, std::memory_order_acq_rel)) return;
  }
}

void Queue::note_reached(std::uint64_t value) noexcept {
  if (Timeline* timeline = find_timeline(timeline_)) raise_to(timeline->reached, value, std::memory_order_acq_rel);
}

void Queue::let_go_of_reached() noexcept {
  const Timeline* timeline = find_timeline(timeline_);
  if (timeline == nullptr) return;
  std::vector<Kept> reached;
  {
    const MutexLock lock(mutex_);
    const std::uint64_t value = timeline->reached.load(std::memory_order_acquire);
    const auto end = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.until > value; });
    if (end == kept_.begin()) return;
    if (end == kept_.end()) {
      reached.swap(kept_);
    } else {
      reached.assign(kept_.begin(), end);
      kept_.erase(kept_.begin(), end);
    }
  }
  for (const Kept& kept : reached) kept.owner->drop();  // outside the lock: a drop may free memory of a device
}

Result<void> Queue::write(const Window& target, std::span<const std::byte> source) {
  if (source.size() != target.bytes)
    return Error(Code::kSizeMismatch, Layer::kQueue, "{} bytes to write into a window of {}", source.size(),
                 target.bytes);
  BERTH_TRY(check(target, Usage::kCopyTarget, true));
  if (source.empty()) return {};
  const MutexLock lock(mutex_);
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
  BERTH_TRY(do_copy(source, target));
  stamp(source);
  stamp(target);
  return {};
}

Result<void> Queue::fill(const Window& target, std::uint8_t value) {
  BERTH_TRY(check(target, Usage::kCopyTarget, true));
  if (target.bytes == 0) return {};
  const MutexLock lock(mutex_);
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
  BERTH_TRY(do_launch(kernel, arguments, grid, constants));
  for (const KernelArgument& argument : arguments) stamp(argument.window);
  recorded_ = true;
  return {};
}

Result<void> Queue::record_native(std::span<const Window> uses,
                                  const std::function<Result<void>(void* native)>& record) {
  const MutexLock lock(mutex_);
  BERTH_TRY(do_record_native(uses, record));
  for (const Window& window : uses) stamp(window);
  recorded_ = true;
  return {};
}

Result<void> Queue::wait_for(Timepoint moment) {
  if (moment.timeline() == timeline_ || is_reached(moment)) return {};
  const MutexLock lock(mutex_);
  BERTH_TRY(do_wait_for(moment));
  // The next submit has a timepoint of its own even if nothing else is recorded: it is reached after `moment`.
  recorded_ = true;
  return {};
}

Result<Timepoint> Queue::submit() {
  Residency* const residency = device_->residency();
  Timepoint moment;
  bool keeps_buffers = false;
  while (true) {
    // Committed outside the lock, because the set's callback is the user's code and placing memory takes long. Another
    // thread may record work with memory of its own meanwhile, so the set is tested again inside the lock.
    if (residency != nullptr) BERTH_TRY(residency->commit());
    const MutexLock lock(mutex_);
    if (residency != nullptr && residency->has_pending()) continue;
    if (recorded_) {
      const std::uint64_t value = submitted_.load(std::memory_order_relaxed) + 1;
      BERTH_TRY(do_submit(value));
      submitted_.store(value, std::memory_order_relaxed);
      recorded_ = false;
      if (executes_at_once()) note_reached(value);
    }
    moment = Timepoint::at(timeline_, submitted_.load(std::memory_order_relaxed));
    keeps_buffers = !kept_.empty();
    break;
  }
  // A program that never waits on this queue must not keep released buffers forever.
  if (keeps_buffers) {
    note_reached(poll());
    let_go_of_reached();
  }
  return moment;
}

Result<void> Queue::wait(Timepoint moment) {
  if (moment.timeline() != timeline_) return berth::wait(moment);
  if (!is_reached(moment)) {
    {
      const MutexLock lock(mutex_);
      if (moment.value() > submitted_)
        return Error(Code::kInvalidArgument, Layer::kQueue,
                     "timepoint {} of this queue is not submitted yet (the last is {}); call submit() first",
                     moment.value(), submitted_.load(std::memory_order_relaxed));
    }
    BERTH_TRY(do_wait(moment.value()));
    note_reached(moment.value());
  }
  let_go_of_reached();
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
  const LineUse use(*find_timeline(moment.timeline()));
  return use.queue() == nullptr ? Result<void>() : use.queue()->wait(moment);
}

}  // namespace berth
