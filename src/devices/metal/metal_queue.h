// An MTLCommandQueue as a queue. Recording encodes into a command buffer, with one blit or compute encoder at a time;
// submit() signals the shared event of the queue with the value of the timepoint and commits. Other METAL queues, of
// this GPU or another, wait for that event on the GPU. A completion handler of each command buffer reports that its
// timepoint is reached. Threads as for Queue; must not outlive its device.
//
// The host copies bytes of shared memory itself if the queue is idle, because nothing can be overtaken then; otherwise
// transfers go through staging pieces and blits, in order.
//
// Work that fails on the GPU breaks the queue: its timepoint is never reached, and every later call returns the error.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/queue.h"
#include "devices/metal/metal_device.h"
#include "memory/timeline_map.h"

namespace berth::internal::metal {

class MetalQueue final : public Queue {
 public:
  static Result<std::unique_ptr<Queue>> make(MetalDevice& device);
  ~MetalQueue() override;

 protected:
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override;
  Result<void> do_read(const Window& source, std::span<std::byte> target) override;
  Result<void> do_copy(const Window& source, const Window& target) override;
  Result<void> do_fill(const Window& target, std::uint8_t value) override;
  Result<void> do_copy_rows(const Window& source, std::size_t source_pitch, const Window& target,
                            std::size_t target_pitch, std::size_t row_bytes, std::size_t rows) override;
  Result<void> do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                         std::span<const std::byte> constants) override;
  Result<void> do_record_native(std::span<const Window> uses,
                                const std::function<Result<void>(void* native)>& record) override;
  Result<void> do_wait_for(Timepoint moment) override;
  Result<void> do_submit(std::uint64_t value) override;
  Result<void> do_wait(std::uint64_t value) override;
  std::uint64_t poll() noexcept override;

 private:
  // Bytes that are in staging when the work is done, and are then copied to their target.
  struct Arrival {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  struct Progress;
  // The outcome of the work of one timepoint: success if its commands and everything it waited for succeeded. A queue
  // that waits on the GPU for one that fails must not appear to have succeeded. Any thread may ask.
  class Outcome {
   public:
    Outcome(Owned<MTL::CommandBuffer> commands, std::vector<std::shared_ptr<Outcome>> waits)
        : commands_(std::move(commands)), waits_(std::move(waits)) {}
    bool is_over();
    void wait();
    // Requires: is_over().
    const std::optional<Error>& error() const noexcept { return error_; }
    // The queues that wait for this one, to be checked again when it is over: their work may have failed before it.
    void add_dependent(std::weak_ptr<Progress> queue);
    std::vector<std::weak_ptr<Progress>> take_dependents();

   private:
    Mutex mutex_;  // guards what follows; acquired from a timepoint to earlier ones, never back
    Owned<MTL::CommandBuffer> commands_ BERTH_GUARDED_BY(mutex_);  // null if the host did all of it
    std::vector<std::shared_ptr<Outcome>> waits_ BERTH_GUARDED_BY(mutex_);
    std::vector<std::weak_ptr<Progress>> dependents_ BERTH_GUARDED_BY(mutex_);
    bool over_ BERTH_GUARDED_BY(mutex_) = false;
    std::optional<Error> error_ BERTH_GUARDED_BY(mutex_);
  };
  // What recorded work holds until it is done.
  struct Held {
    std::vector<StagingPiece> pieces;
    std::vector<Arrival> arrivals;
    std::vector<std::shared_ptr<Outcome>> waits;
  };
  // A timepoint in flight.
  struct Flight {
    std::uint64_t value;
    std::shared_ptr<Outcome> outcome;
    Held held;
  };
  // The progress of the queue. Completion handlers share it, so that a late one finds it.
  struct Progress {
    explicit Progress(StagingPool& pool) : staging(pool) {}

    bool idle();
    // Completes the flights at the front that are over.
    void settle();
    void settle_locked() BERTH_REQUIRES(mutex);
    void break_off(const Error& why) BERTH_REQUIRES(mutex);
    std::optional<Error> broken_by();

    StagingPool& staging;
    Owned<MTL::SharedEvent> event;
    std::atomic<std::uint64_t> reached{0};
    std::atomic<std::uint64_t> submitted{0};
    Mutex mutex;  // guards what follows
    std::deque<Flight> flights BERTH_GUARDED_BY(mutex);
    std::vector<std::weak_ptr<Progress>> dependents
        BERTH_GUARDED_BY(mutex);  // of flights that are over, still to be checked
    std::optional<Error> error BERTH_GUARDED_BY(mutex);
  };

  // The live METAL queues by timeline, for others to wait for.
  static TimelineMap<std::shared_ptr<Progress>>& timelines();

  MetalQueue(MetalDevice& device, Owned<MTL::CommandQueue> queue, Owned<MTL::SharedEvent> event);

  Result<void> check_whole();
  Result<MTL::CommandBuffer*> commands();
  Result<MTL::BlitCommandEncoder*> blit();
  // An encoder with the pipeline set.
  Result<MTL::ComputeCommandEncoder*> compute(const MTL::ComputePipelineState& pipeline);
  void end_encoding() noexcept;
  bool can_move_now(const Window& window);
  // Room in staging; `room` is set to how much of `bytes` fits.
  Result<StagingPiece*> staging(std::size_t bytes, std::size_t* room);
  // Runs what is recorded and waits for it, without a timepoint: if staging is full, or if work must not stay
  // incomplete.
  Result<void> flush();
  // Records, and if that fails half way, ensures that nothing of it is executed later.
  Result<void> all_or_over(const std::function<Result<void>()>& record);
  Result<void> write_staged(const Window& target, std::span<const std::byte> source);
  Result<void> read_staged(const Window& source, std::span<std::byte> target);
  Result<void> copy_window(const Window& source, const Window& target);
  Result<void> fill_window(const Window& target, std::uint8_t value);
  Result<void> copy_bytes(const MTL::Buffer& from, std::size_t from_at, const MTL::Buffer& to, std::size_t to_at,
                          std::size_t bytes);
  Result<void> copy_odd_bytes(const MTL::Buffer& from, std::size_t from_at, const MTL::Buffer& to, std::size_t to_at,
                              std::size_t bytes);
  Result<void> fill_odd_bytes(const MTL::Buffer& target, std::size_t at, std::size_t bytes, std::uint8_t value);
  static void deliver(StagingPool& pool, Held& held, bool arrived) noexcept;

  MetalDevice& metal_;
  const Owned<MTL::CommandQueue> queue_;
  const std::shared_ptr<Progress> progress_;
  // Guarded by the lock of Queue.
  Owned<MTL::CommandBuffer> commands_;
  Owned<MTL::BlitCommandEncoder> blit_;  // at most one of the two exists
  Owned<MTL::ComputeCommandEncoder> compute_;
  const MTL::ComputePipelineState* pipeline_ = nullptr;  // the one that compute_ has, kept by the command buffer
  Held held_;
};

}  // namespace berth::internal::metal
