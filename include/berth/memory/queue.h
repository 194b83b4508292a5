// Work in order. A queue records writes, reads, copies, fills and kernels; submit() sends them off and names
// the moment they are done; wait() blocks until then. Everything on one queue happens in the order recorded;
// parallelism is several queues. Pending residency is committed in submit(), before the work, and nowhere
// else. Several threads may record at once: each call is atomic and submits are serialised.
//
//   record ... record -> submit() = t1 -> record ... -> submit() = t2        t1 reached before t2
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "berth/base/result.h"
#include "berth/memory/block.h"
#include "berth/memory/kernel.h"

namespace berth {

class Device;

class Queue {
 public:
  virtual ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Host to device. The source may be reused as soon as the call returns.
  // SizeMismatch, ReadOnly, InvalidUsage, InvalidView (a window outside its block), Unsupported (a window of
  // a device that this queue cannot reach), or the driver's error. The same holds for the calls below.
  Result<void> write(const Window& target, std::span<const std::byte> source);

  // Device to host. The target holds the bytes once a moment at or after the next submit is waited for.
  Result<void> read(const Window& source, std::span<std::byte> target);

  // Device to device, with memmove semantics inside one block. Both windows belong to devices that this
  // queue's device can reach (see Device::reaches); else Unsupported.
  Result<void> copy(const Window& source, const Window& target);

  Result<void> fill(const Window& target, std::uint8_t value);

  // `rows` rows of `row_bytes`, each `source_pitch` and `target_pitch` bytes after the one before.
  Result<void> copy_rows(const Window& source, std::size_t source_pitch, const Window& target, std::size_t target_pitch,
                         std::size_t row_bytes, std::size_t rows);

  // Unsupported if the device makes no kernels; InvalidUsage, Misaligned (with the numbers), InvalidArgument
  // when a written window overlaps another argument.
  Result<void> launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                      std::span<const std::byte> constants = {});

  // Hands the device's own encoder or stream to `record`, for work that Berth does not know. `uses` names the
  // windows it touches.
  Result<void> record_native(std::span<const Window> uses, const std::function<Result<void>(void* native)>& record);

  // Work recorded after this call starts only when `moment` (of any queue) is reached; the host does not
  // block where the device can wait by itself.
  Result<void> wait_for(Timepoint moment);

  // Commits pending residency, then sends off what was recorded. With nothing recorded, returns the last
  // moment.
  Result<Timepoint> submit();

  // Blocks until `moment` (of this queue) is reached.
  Result<void> wait(Timepoint moment);

  // Blocks until everything submitted so far is done.
  Result<void> wait_submitted();

  // submit() and wait() in one.
  Result<void> finish();

  Device& device() const noexcept { return *device_; }
  TimelineId timeline() const noexcept { return timeline_; }
  // The moment that the next submit will give.
  Timepoint next() const noexcept { return Timepoint::at(timeline_, submitted_ + 1); }

 protected:
  // Takes a timeline. Requires: `device` outlives the queue (Device::make_queue sees to it).
  explicit Queue(Device& device);

  // True where recording is doing, as on CPU: nothing is ever in flight, so nothing is stamped.
  virtual bool executes_at_once() const noexcept { return false; }

  // To be called first in every subclass's destructor: waits for all submitted work, so that no moment of
  // this line stays unreached.
  void close() noexcept;

  // The driver's part. Called with the queue's lock held and arguments checked.
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
  // Sends off the recorded work so that poll() and do_wait() can see `value` reached.
  virtual Result<void> do_submit(std::uint64_t value) = 0;
  // Blocks until `value` is reached. Called without the lock.
  virtual Result<void> do_wait(std::uint64_t value) = 0;
  // The highest value reached so far, without blocking. Called without the lock.
  virtual std::uint64_t poll() noexcept = 0;

 private:
  friend bool is_reached(Timepoint moment) noexcept;
  friend Result<void> wait(Timepoint moment);

  struct Kept {
    BlockOwner* owner;
    std::uint64_t until;
  };

  Result<void> check(const Window& window, Usage usage, bool writes) const;
  void stamp(const Window& window);
  void note_reached(std::uint64_t value) noexcept;
  void let_go_of_reached() noexcept;
  Result<std::unique_lock<std::mutex>> lock_with_all_resident();

  Device* device_;
  std::mutex mutex_;
  TimelineId timeline_;
  std::uint64_t submitted_;
  bool recorded_ = false;
  bool closed_ = false;
  std::vector<Kept> kept_;  // in order of `until`
};

using QueuePtr = std::shared_ptr<Queue>;

// Whether the moment is reached: one atomic load when it is known, else the queue is polled.
bool is_reached(Timepoint moment) noexcept;

// Blocks until the moment, of whichever queue, is reached.
Result<void> wait(Timepoint moment);

}  // namespace berth
