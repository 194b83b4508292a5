// A CUDA stream as a queue. Operations are issued to the driver as they are recorded, and submit() records the event of
// its timepoint. Writes go through pinned pieces, so that the source may be reused at once and the host does not wait;
// small reads do too, and are copied to their target when the timepoint is found to be reached. Threads as for Queue;
// must not outlive its device.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/queue.h"
#include "devices/cuda/cuda_capture.h"
#include "devices/cuda/cuda_device.h"
#include "memory/timeline_map.h"

namespace berth::internal::cuda {

class CudaQueue final : public Queue {
 public:
  static Result<std::unique_ptr<Queue>> make(CudaDevice& device);
  ~CudaQueue() override;

  Stream stream() const noexcept { return stream_; }
  CudaDevice& cuda() const noexcept { return cuda_; }
  // The capture that this queue is part of, or null.
  Capture* capture() const noexcept { return capture_.load(std::memory_order_acquire); }
  void set_capture(Capture* capture) noexcept { capture_.store(capture, std::memory_order_release); }
  // Orders what `later` records from now on after what this queue has recorded, on the GPU.
  Result<void> order_before(CudaQueue& later);

  // An event after everything of this queue up to the timepoint `value`, and possibly more.
  Result<EventPtr> event_after(std::uint64_t value);

  // Waits for work that was recorded but never submitted, on every queue of this device: it has no timepoint.
  static void wait_for_unsubmitted(const CudaDevice& device) noexcept;

  // Blocks until everything issued to the stream is done; if it captures, what was submitted before.
  Status settle_issued() noexcept;

  // Calls `use(queue)` for each live queue of `device`, which stays alive during the call.
  template <class Use>
  static void for_each_of(const CudaDevice& device, const Use& use) {
    timelines().for_each([&](CudaQueue* queue) {
      if (&queue->cuda() == &device) use(*queue);
    });
  }

  // Calls `use(queue)` with the live CUDA queue of this timeline; the queue is kept alive during the call. False if
  // there is none.
  template <class Use>
  static bool with_timeline(TimelineId timeline, const Use& use) {
    return timelines().with(timeline, [&](CudaQueue* queue) { use(*queue); });
  }

 protected:
  // What is captured is never in flight: no last use is stored. The graph keeps its memory, and its launches are uses.
  bool executes_at_once() const noexcept override { return capture() != nullptr; }
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
  // A timepoint in flight.
  struct Flight {
    std::uint64_t value;
    EventPtr event;
  };
  // Bytes that are in a pinned piece when `value` is reached, and are then copied to their target.
  struct Arrival {
    std::uint64_t value;
    std::size_t piece;  // in read_pieces_
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  struct WritePiece {
    std::byte* memory;
    std::size_t used;
    std::uint64_t value;  // the timepoint after its last use
    EventPtr left;        // recorded when a long write continued in another piece

    void empty() noexcept {
      used = 0;
      left.reset();
    }
  };
  struct ReadPiece {
    std::byte* memory;
    std::size_t used;
    std::size_t arrivals;
  };

  CudaQueue(CudaDevice& device, Stream stream) : Queue(device), cuda_(device), stream_(stream) {}
  static TimelineMap<CudaQueue*>& timelines();

  // Called before every operation: what comes next may use memory of this device and of `other`.
  Result<void> prepare(const CudaDevice* other = nullptr);
  // kUnsupported for memory of another GPU if the driver can only copy it.
  Result<void> check_here(const Window& window) const;
  Result<void> prepare(const Window& a, const Window& b);
  // If the queue captures, the graph keeps what the window needs.
  Result<void> note_capture(const Window& window);
  Error fail(Status status, const char* call) const { return cuda_.driver().error(status, call, Layer::kQueue); }
  // For a failure after part of an operation was issued: waits for it, because the base will not store its last use.
  Error fail_midway(Error error) noexcept;
  Result<void> copy_overlapping(Address target, Address source, std::size_t bytes);
  Result<std::byte*> write_space(std::size_t bytes, std::size_t* room);
  Result<void> wait_for_piece(const WritePiece& piece);
  std::optional<std::pair<std::size_t, std::byte*>> read_space(std::size_t bytes) BERTH_REQUIRES(flight_mutex_);
  // The first timepoint in flight that is not before `value`, or null. Requires: flight_mutex_ is held.
  const Flight* find_flight(std::uint64_t value) const BERTH_REQUIRES(flight_mutex_);
  void complete(std::uint64_t value);
  void forget_arrivals() noexcept;
  // If the driver answers neither for an event nor for the stream, nothing is certain any more: every later call
  // returns this error.
  Error break_off(Error error);
  Result<void> check_whole();

  CudaDevice& cuda_;
  const Stream stream_;
  std::vector<std::pair<const CudaDevice*, std::uint64_t>> homes_seen_;  // guarded by the lock of Queue
  std::vector<WritePiece> write_pieces_;                                 // likewise
  std::size_t write_at_ = 0;
  std::atomic<Capture*> capture_{nullptr};
  std::atomic<bool> issued_{false};  // something was put on the stream after the last submit

  Mutex flight_mutex_;  // guards what follows; held for short driver calls only
  std::deque<Flight> flights_ BERTH_GUARDED_BY(flight_mutex_);
  std::deque<Arrival> arrivals_ BERTH_GUARDED_BY(flight_mutex_);
  std::vector<ReadPiece> read_pieces_ BERTH_GUARDED_BY(flight_mutex_);
  std::deque<std::pair<std::uint64_t, Kernel>> kernels_
      BERTH_GUARDED_BY(flight_mutex_);  // in use until their timepoint
  std::atomic<std::uint64_t> reached_{0};
  std::optional<Error> broken_by_ BERTH_GUARDED_BY(flight_mutex_);
  std::atomic<bool> broken_{false};
};

// The CUDA device of a window, or null for another backend.
CudaDevice* cuda_device_of(const Window& window) noexcept;

}  // namespace berth::internal::cuda
