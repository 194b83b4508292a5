// A capture in progress, and the rules that captures impose on this process. While a stream captures, the driver adds
// its operations to a graph instead of executing them, and refuses calls that are potentially unsafe: those that wait,
// and those that allocate or free outside of a stream. A refused call also invalidates the capture, so Berth asks these
// rules first and returns an error of its own. Any thread may call; a Capture lives from cuStreamBeginCapture to
// cuStreamEndCapture.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/block.h"
#include "berth/memory/kernel.h"
#include "devices/cuda/cuda_driver.h"

namespace berth::internal::cuda {

class CudaDevice;
class CudaQueue;

// True if this thread must not make potentially unsafe calls: it captures itself, or another thread captures in the
// global mode.
bool capture_forbids() noexcept;

// kInvalidUsage if capture_forbids(). `what` is a literal such as "waiting for a queue".
Result<void> check_no_capture(const char* what, Layer layer = Layer::kQueue);

// Potentially unsafe calls are allowed on this thread until the scope ends: for destructors and the memory of graphs.
// Calls that concern a capturing stream itself stay forbidden. Without a capture it calls no driver.
class UnsafeCalls {
 public:
  explicit UnsafeCalls(const Driver& driver) noexcept;
  ~UnsafeCalls();
  UnsafeCalls(const UnsafeCalls&) = delete;
  UnsafeCalls& operator=(const UnsafeCalls&) = delete;

 private:
  const Driver& driver_;
  bool exchanged_ = false;
  CaptureMode outer_ = kCaptureGlobal;
};

// What a graph needs as long as it can be launched: memory that is not of its pool, kernels, and the bytes that writes
// of the host captured.
class GraphParts {
 public:
  explicit GraphParts(CudaDevice& device) : cuda_(device) {}
  ~GraphParts();
  GraphParts(const GraphParts&) = delete;
  GraphParts& operator=(const GraphParts&) = delete;

  // Keeps the owner of the window alive and its address valid.
  void keep(const Window& window);
  void keep(const Kernel& kernel) { kernels_.push_back(kernel); }
  // A copy of the bytes in pinned memory, at the same address for every launch.
  Result<const std::byte*> keep(std::span<const std::byte> bytes);

  std::span<const Window> windows() const noexcept { return windows_; }

 private:
  CudaDevice& cuda_;
  std::vector<Window> windows_;  // one per owner
  std::unordered_set<BlockOwner*> owners_;
  std::vector<Kernel> kernels_;
  std::vector<void*> pinned_;
};

class Capture {
 public:
  // `is_of_pool(block)` tells the memory of the graph's pool from other memory, which the graph keeps alive.
  // `on_joined()` is called when all queues of the capture have been joined again.
  struct Memory {
    std::function<bool(const Block&)> is_of_pool;
    std::function<void()> on_joined;
  };

  // Begins to capture on `origin`. kInvalidUsage if the queue captures already; the driver's error.
  static Result<std::unique_ptr<Capture>> begin(CudaQueue& origin, CaptureMode mode, Memory memory);
  // A capture that was not ended is ended, and its graph is dropped.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Orders what `queue` records from now on after what the origin has captured so far; the queue joins the capture.
  Result<void> fork(CudaQueue& queue);
  // Orders what the origin captures from now on after what `queue` has captured so far.
  Result<void> join(CudaQueue& queue);
  // Joins all queues, and ends the capture in any case. The error of the first operation that was captured in part, or
  // the driver's. Requires: check_thread().
  Result<Graph> end();

  // --- For the queues of the capture ---
  // kInvalidUsage if the queue was joined: what it records would have no order to what the origin captured since.
  Result<void> check(const CudaQueue& queue) const;
  void use(const Window& window);
  void use(const Kernel& kernel);
  Result<const std::byte*> use(std::span<const std::byte> bytes);
  // Part of an operation was captured: the graph must not be used.
  void spoil(const Error& error) noexcept;

  // False while a queue is forked and not joined.
  bool all_joined() const noexcept;
  CudaQueue& origin() const noexcept { return origin_; }
  // The queue of this capture with that timeline, or null.
  CudaQueue* find(TimelineId timeline) const noexcept;
  // kInvalidUsage if the capture cannot end on this thread.
  Result<void> check_thread() const;
  std::unique_ptr<GraphParts> take_parts() noexcept;

 private:
  struct Side {
    CudaQueue* queue;
    bool joined;
  };

  Capture(CudaQueue& origin, CaptureMode mode, Memory memory);
  Result<void> join_all();
  Status end_capture(Graph* graph) noexcept;
  void leave() noexcept;

  CudaDevice& cuda_;
  CudaQueue& origin_;
  const CaptureMode mode_;
  const std::thread::id thread_;
  const Memory memory_;
  bool active_ = false;
  mutable Mutex mutex_;  // below the locks of queues
  std::vector<Side> sides_ BERTH_GUARDED_BY(mutex_);
  std::unique_ptr<GraphParts> parts_ BERTH_GUARDED_BY(mutex_);
  std::optional<Error> spoilt_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal::cuda
