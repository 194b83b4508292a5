// Ordered execution. A queue records writes, reads, copies, fills and kernels; submit() starts the recorded work and
// returns the timepoint at which it is done; wait() blocks until a timepoint is reached. Work on one queue executes in
// the order recorded; use several queues for parallel work. submit() commits pending residency before the work, and
// nothing else commits it. Several threads may record at once: each call is atomic and submits are serialised.
//
// Recorded work may be submitted before its submit(): if a queue runs out of staging memory, or if a blocking copy of a
// Buffer, or the end of imported memory, must wait for it. The order is the same, so this cannot be observed, except
// that the timepoint of the work may be an earlier one.
//
// Work that is recorded and not submitted when its queue is destroyed may or may not execute: CPU and CUDA have already
// begun it, METAL and WEBGPU drop it. The bytes that it writes are then unspecified. It never executes later.
//
//   record ... record -> submit() = t1 -> record ... -> submit() = t2        t1 reached before t2
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "berth/memory/block.h"
#include "berth/memory/kernel.h"

namespace berth {

class Device;
namespace internal {
struct QueueUses;
}

class Queue {
 public:
  virtual ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Copies from host to device. The source may be reused when the call returns.
  // kSizeMismatch, kReadOnly, kInvalidUsage, kInvalidView (a window outside its block), kUnsupported (a window of a
  // device that this queue cannot reach), or the driver's error. The calls below fail in the same way.
  Result<void> write(const Window& target, std::span<const std::byte> source);

  // Copies from device to host. The target holds the bytes after a wait for the timepoint of the next submit or a later
  // one.
  Result<void> read(const Window& source, std::span<std::byte> target);

  // Copies from device to device, with memmove semantics within one block. kUnsupported unless this queue's device can
  // reach the devices of both windows (see Device::reaches).
  Result<void> copy(const Window& source, const Window& target);

  Result<void> fill(const Window& target, std::uint8_t value);

  // Copies `rows` rows of `row_bytes` bytes. Consecutive rows start `source_pitch` and `target_pitch` bytes apart.
  Result<void> copy_rows(const Window& source, std::size_t source_pitch, const Window& target, std::size_t target_pitch,
                         std::size_t row_bytes, std::size_t rows);

  // Launches a kernel. kUnsupported if the device has no kernels; kInvalidUsage; kMisaligned, with the numbers;
  // kInvalidArgument if a written window overlaps another argument.
  Result<void> launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                      std::span<const std::byte> constants = {});

  // Calls `record` with the device's native encoder or stream, for work that Berth does not know. `uses` lists the
  // windows that the work accesses. An exception of `record` is passed on. Requires: `record` does not use this queue.
  Result<void> record_native(std::span<const Window> uses, const std::function<Result<void>(void* native)>& record);

  // Delays work recorded after this call until `moment`, of any queue, is reached. The host does not block if the
  // device can wait by itself. A wait for an unreached moment of another queue counts as recorded work: the timepoint
  // of the next submit is reached after `moment`. kInvalidArgument if `moment` is not submitted yet; the driver's
  // error.
  Result<void> wait_for(Timepoint moment);

  // Commits pending residency, then submits the recorded work and returns its timepoint. If nothing was recorded,
  // returns the previous timepoint.
  Result<Timepoint> submit();

  // Blocks until `moment`, of this queue, is reached.
  Result<void> wait(Timepoint moment);

  // Blocks until all work submitted so far is done.
  Result<void> wait_submitted();

  // submit() followed by wait().
  Result<void> finish();

  Device& device() const noexcept { return *device_; }
  TimelineId timeline() const noexcept { return timeline_; }
  // The timepoint that the next submit() will return.
  Timepoint next() const noexcept { return Timepoint::at(timeline_, submitted_.load(std::memory_order_relaxed) + 1); }

 protected:
  // Acquires a timeline. Requires: `device` outlives the queue (Device::make_queue ensures this).
  explicit Queue(Device& device);

  // True if operations execute as they are recorded, as on CPU. Nothing is ever in flight then, so no last use is
  // stored.
  virtual bool executes_at_once() const noexcept { return false; }

  // Must be called first in the destructor of every subclass. Waits for all submitted work, so that every timepoint of
  // this timeline is reached. Nothing is submitted from then on.
  void close() noexcept;

  // Implemented by the backend. Called with the queue's lock held and with checked arguments.
  virtual Result<void> do_write(const Window& target, std::span<const std::byte> source) = 0;
  virtual Result<void> do_read(const Window& source, std::span<std::byte> target) = 0;
  virtual Result<void> do_copy(const Window& source, const Window& target) = 0;
  virtual Result<void> do_fill(const Window& target, std::uint8_t value) = 0;
  virtual Result<void> do_copy_rows(const Window& source, std::size_t source_pitch, const Window& target,
                                    std::size_t target_pitch, std::size_t row_bytes, std::size_t rows);
  virtual Result<void> do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                                 std::span<const std::byte> constants);
  virtual Result<void> do_record_native(std::span<const Window> uses,
                                        const std::function<Result<void>(void* native)>& record);
  // The default waits on the host.
  virtual Result<void> do_wait_for(Timepoint moment);
  // Submits the recorded work such that poll() and do_wait() can observe `value`.
  virtual Result<void> do_submit(std::uint64_t value) = 0;
  // Blocks until `value` is reached. Called without the lock.
  virtual Result<void> do_wait(std::uint64_t value) = 0;
  // The highest value reached so far. Does not block. Called without the lock.
  virtual std::uint64_t poll() noexcept = 0;

 private:
  friend bool is_reached(Timepoint moment) noexcept;
  friend Result<void> wait(Timepoint moment);
  friend class Device;
  friend struct internal::QueueUses;

  struct Kept {
    BlockOwner* owner;
    std::uint64_t until;
  };

  Result<void> check(const Window& window, Usage usage, bool writes) const;
  // Ensures that stamp() can keep this many owners. kOutOfMemory.
  Result<void> make_room(std::size_t owners) BERTH_REQUIRES(mutex_);
  void stamp(const Window& window) noexcept BERTH_REQUIRES(mutex_);
  void note_reached(std::uint64_t value) noexcept;
  // submit() and wait() without dropping anything: a drop may run the user's code, which may destroy the queue.
  Result<Timepoint> submit_recorded();
  Result<void> wait_only(Timepoint moment);
  // An owner that is kept for a timepoint up to `value`, or null. The reference passes to the caller.
  BlockOwner* take_kept(std::uint64_t value) noexcept BERTH_EXCLUDES(mutex_);
  // Drops what the queue of this timeline, if there is one, has kept until now. The queue may be destroyed by that.
  static void drop_reached(TimelineId timeline) noexcept;

  Device* device_;
  Mutex mutex_;
  const TimelineId timeline_;
  std::atomic<std::uint64_t> submitted_;  // written under the lock; next() reads it without
  bool recorded_ BERTH_GUARDED_BY(mutex_) = false;
  bool closed_ BERTH_GUARDED_BY(mutex_) = false;
  std::vector<Kept> kept_ BERTH_GUARDED_BY(mutex_);  // sorted by `until`
  std::size_t taken_ BERTH_GUARDED_BY(mutex_) = 0;   // of kept_, from its beginning
  std::atomic<bool> keeps_ = false;                  // kept_ is not empty
};

using QueuePtr = std::shared_ptr<Queue>;

// True if the timepoint is reached: one atomic load if that is already known, otherwise polls the queue.
bool is_reached(Timepoint moment) noexcept;

// Blocks until the timepoint, of any queue, is reached.
Result<void> wait(Timepoint moment);

}  // namespace berth
