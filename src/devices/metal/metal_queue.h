// An MTLCommandQueue behind the common queue. Recording encodes into a command buffer, through one blit or compute
// encoder at a time; submit() signals the queue's shared event with the moment's value and commits. Other METAL queues,
// of this GPU or another, wait for that event on the GPU. A completion handler of each command buffer tells that its
// moment is reached. Threads as for Queue; lives no longer than its device.
//
// The host moves bytes of shared memory itself where the queue is idle, because then nothing can be overtaken; else
// they go through staging pieces and blits, in order.
//
// Work that fails on the GPU breaks the queue off: its moment is never reached, and every later call gives the error.
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

namespace berth::metal {

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
  // Bytes that are in staging when the work is done, and then go on to their target.
  struct Arrival {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  struct Progress;
  // How the work of a moment ended: well, if its commands and everything it waited for did. A queue that waits on the
  // GPU for one that fails must not seem to have succeeded. Any thread may ask.
  class Outcome {
   public:
    Outcome(Owned<MTL::CommandBuffer> commands, std::vector<std::shared_ptr<Outcome>> waits)
        : commands_(std::move(commands)), waits_(std::move(waits)) {}
    bool is_over();
    void wait();
    // Requires: is_over().
    const std::optional<Error>& error() const noexcept { return error_; }
    // The queues that wait for this, to be looked at again when it is over: work of theirs may have failed before it.
    void add_dependent(std::weak_ptr<Progress> queue);
    std::vector<std::weak_ptr<Progress>> take_dependents();

   private:
    Mutex mutex_;  // guards what follows; taken from a moment to those before it, never back
    Owned<MTL::CommandBuffer> commands_ BERTH_GUARDED_BY(mutex_);  // null where the host did all of it
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
  // A moment on its way.
  struct Flight {
    std::uint64_t value;
    std::shared_ptr<Outcome> outcome;
    Held held;
  };
  // How far the queue has come. Completion handlers share it, so that one that runs late finds it.
  struct Progress {
    explicit Progress(StagingPool& pool) : staging(pool) {}

    bool idle();
    // Delivers what the flights at the front brought, as far as they are over.
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
        BERTH_GUARDED_BY(mutex);  // of flights that are over, still to be looked at
    std::optional<Error> error BERTH_GUARDED_BY(mutex);
  };

  // The METAL queues alive, by their line, for others to wait for.
  static TimelineMap<std::shared_ptr<Progress>>& timelines();

  MetalQueue(MetalDevice& device, Owned<MTL::CommandQueue> queue, Owned<MTL::SharedEvent> event);

  Result<void> check_whole();
  Result<MTL::CommandBuffer*> commands();
  Result<MTL::BlitCommandEncoder*> blit();
  // An encoder with the pipeline set.
  Result<MTL::ComputeCommandEncoder*> compute(const MTL::ComputePipelineState& pipeline);
  void end_encoding() noexcept;
  bool can_move_now(const Window& window);
  // Room in staging; `room` says how much of `bytes` fits.
  Result<StagingPiece*> staging(std::size_t bytes, std::size_t* room);
  // Runs what is recorded and waits for it, without a moment: when staging is full, or work must not stay half done.
  Result<void> flush();
  // Records, and where that fails half way makes sure that nothing of it is left to happen later.
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
  // Guarded by the base's lock.
  Owned<MTL::CommandBuffer> commands_;
  Owned<MTL::BlitCommandEncoder> blit_;  // at most one of the two is there
  Owned<MTL::ComputeCommandEncoder> compute_;
  const MTL::ComputePipelineState* pipeline_ = nullptr;  // the one that compute_ has, kept by the command buffer
  Held held_;
};

}  // namespace berth::metal
