// Graphs of CUDA: work that a queue records once and the GPU repeats, with one launch. While a queue captures, what it
// records (copies, fills, writes, kernels, native work) becomes part of a graph instead of running. Its memory comes
// from a pool of the graph, which keeps every address for as long as the graph exists.
//
//   auto capture = CudaCapture::begin(queue).value();
//   auto hidden  = Buffer::allocate(capture.memory(), f32, {4096}).value();   // of the graph's pool
//   queue->launch(...) ...                                                    // captured, not run
//   CudaGraph graph = capture.end().value();
//   Timepoint done  = graph.launch(*queue).value();                           // as often as needed
//
// What the driver forbids during a capture is an error (kInvalidUsage) before the driver sees it, and leaves the
// capture valid: on the capturing queue submit(), wait_for() and read(); on the capturing thread also every wait that
// would ask the driver, allocations from other allocators that do not have the memory in their cache, and the loading
// of kernels. A write captures the bytes that it was given. Frees of other memory are put off until the capture ends.
// Captured work does not run: in all modes but the global one, other threads may copy the buffers that it uses.
//
// A CudaCapture belongs to the thread that began it, unless its mode is relaxed. The other classes may be used from any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "berth/base/result.h"
#include "berth/memory/allocator.h"
#include "berth/memory/device.h"
#include "berth/memory/queue.h"

namespace berth {

struct CudaGraphPoolCounters {
  std::size_t bytes = 0;        // memory of the device that the pool holds
  std::size_t slabs = 0;        // in so many pieces
  std::size_t live_bytes = 0;   // of buffers that exist
  std::size_t live_blocks = 0;  // number of these
  std::size_t graphs = 0;       // that use the pool
};
std::string to_string(const CudaGraphPoolCounters& counters);

// The memory of one graph, or of several that never run at once. Blocks can be allocated only while a capture with this
// pool is in progress; a block that is released during the capture serves later requests of the same capture, because
// the graph runs in the order captured. While queues are forked, released blocks wait for their join. Memory returns to
// the device when the last graph, the last buffer and the last pointer to the pool are gone, and not before: trim()
// does nothing.
//
// Graphs that are captured with one pool share its memory: what the first capture released, the second uses again.
// Berth orders their launches on the GPU, so they never overlap, whatever queues they are launched on. A launch of one
// graph may overwrite what another has computed, unless a buffer that was alive during both captures holds it.
class CudaGraphPool : public Allocator {
 public:
  virtual CudaGraphPoolCounters counters() const = 0;
};
using CudaGraphPoolPtr = std::shared_ptr<CudaGraphPool>;

// kInvalidArgument if the device is not a CUDA device.
Result<CudaGraphPoolPtr> make_cuda_graph_pool(DevicePtr device);

// Work that can be launched again and again. Keeps its pool, its kernels, and all buffers of other memory that it uses.
// Its destructor waits for the last launch.
class CudaGraph {
 public:
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&& other) noexcept;
  ~CudaGraph();

  // Puts one run of the graph on `queue`, submits it, and returns its timepoint. The run uses all buffers of the graph:
  // copies and reads of them wait for it. It starts after earlier work of the queue and after all launches of graphs of
  // the same pool. kInvalidArgument for a queue of another device, kInvalidUsage if the queue captures; the driver's
  // error.
  Result<Timepoint> launch(Queue& queue);

  const CudaGraphPoolPtr& pool() const noexcept;

 private:
  friend class CudaCapture;
  struct State;
  explicit CudaGraph(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Which calls of other code the driver refuses during a capture; see cuThreadExchangeStreamCaptureMode. Berth's own
// calls are checked first in every mode.
enum class CudaCaptureMode : std::uint8_t {
  kGlobal,       // unsafe calls of every thread
  kThreadLocal,  // unsafe calls of the capturing thread
  kRelaxed,      // none; the capture may end on another thread
};

struct CudaCaptureOptions {
  CudaGraphPoolPtr pool = nullptr;  // null: a pool of this graph alone
  CudaCaptureMode mode = CudaCaptureMode::kThreadLocal;
};

class CudaCapture {
 public:
  // Begins to capture what `queue` records. kInvalidArgument for a queue or pool of another device; kInvalidUsage if
  // the queue captures already, or another capture with this pool is in progress; the driver's error. Requires: no
  // other thread records on the queue meanwhile.
  static Result<CudaCapture> begin(QueuePtr queue, CudaCaptureOptions options = {});

  CudaCapture(CudaCapture&& other) noexcept;
  CudaCapture& operator=(CudaCapture&&) = delete;
  // Ends the capture and drops what it recorded, unless end() was called.
  ~CudaCapture();

  // The pool of the graph: the allocator for memory that only the graph uses.
  const CudaGraphPoolPtr& memory() const noexcept;

  // A second queue takes part: what it records from now on is captured, and runs after what the first queue has
  // captured so far. Work of several queues can run at the same time. kInvalidUsage if it captures another graph.
  Result<void> fork(QueuePtr queue);
  // What the first queue captures from now on runs after what `queue` has captured so far. `queue` takes no part any
  // more until the next fork(), and cannot be used otherwise before the capture ends. end() joins all queues.
  Result<void> join(Queue& queue);

  // Ends the capture, and makes its graph. If this fails there is no graph, and the queues are as before. The error of
  // an operation that was captured in part; the driver's error, also if other code made calls that invalidated the
  // capture.
  Result<CudaGraph> end();

 private:
  struct State;
  explicit CudaCapture(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace berth
