#include "devices/cuda/cuda_capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/try.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/cuda_queue.h"

namespace berth::internal::cuda {
namespace {

std::atomic<int> global_captures{0};  // of all threads
thread_local int own_captures = 0;    // of this thread, in a mode that restricts it
thread_local int allowed = 0;         // UnsafeCalls

bool restricted() noexcept {
  return own_captures > 0 || global_captures.load(std::memory_order_acquire) > 0;
}

}  // namespace

bool capture_forbids() noexcept {
  return allowed == 0 && restricted();
}

Result<void> check_no_capture(const char* what, Layer layer) {
  if (!capture_forbids()) return {};
  return Error::with_text(
      Code::kInvalidUsage, layer,
      fmt::format("{} would call the CUDA driver in a way that a capture in progress forbids: do it before the capture "
                  "begins or after it ends, and allocate from the graph's pool",
                  what));
}

UnsafeCalls::UnsafeCalls(const Driver& driver) noexcept : driver_(driver) {
  if (!restricted()) return;
  // The caller cannot do without: it is retried once.
  for (int tries = 0; tries < 2 && !exchanged_; ++tries) {
    outer_ = kCaptureRelaxed;
    exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&outer_) == kSuccess;
  }
  if (exchanged_) ++allowed;
}

UnsafeCalls::~UnsafeCalls() {
  if (!exchanged_) return;
  --allowed;
  // If this failed, the driver would miss unsafe calls of other code on this thread. It is retried once.
  CaptureMode mode = outer_;
  if (driver_.cuThreadExchangeStreamCaptureMode(&mode) != kSuccess) {
    mode = outer_;
    static_cast<void>(driver_.cuThreadExchangeStreamCaptureMode(&mode));
  }
}

GraphParts::~GraphParts() {
  for (Window& window : windows_) {
    BlockOwner* const owner = window.owner;
    window.hold = {};
    owner->drop();
  }
  if (pinned_.empty()) return;
  const ContextScope scope(cuda_, 2);
  if (!cuda_.record(scope)) return;
  const UnsafeCalls unsafe(cuda_.driver());
  for (void* const memory : pinned_) cuda_.record(cuda_.driver().cuMemFreeHost(memory), "cuMemFreeHost");
}

void GraphParts::keep(const Window& window) {
  if (window.owner == nullptr || owners_.contains(window.owner)) return;
  windows_.reserve(windows_.size() + 1);
  owners_.insert(window.owner);
  window.owner->retain();
  windows_.push_back(window);
}

Result<const std::byte*> GraphParts::keep(std::span<const std::byte> bytes) {
  pinned_.reserve(pinned_.size() + 1);
  const UnsafeCalls unsafe(cuda_.driver());
  void* memory = nullptr;
  const Status status = cuda_.driver().cuMemHostAlloc(&memory, bytes.size(), kHostAllocPortable);
  if (status != kSuccess) return cuda_.driver().error(status, "cuMemHostAlloc", Layer::kQueue);
  pinned_.push_back(memory);
  std::memcpy(memory, bytes.data(), bytes.size());
  return static_cast<const std::byte*>(memory);
}

Capture::Capture(CudaQueue& origin, CaptureMode mode, Memory memory)
    : cuda_(origin.cuda()),
      origin_(origin),
      mode_(mode),
      thread_(std::this_thread::get_id()),
      memory_(std::move(memory)),
      parts_(std::make_unique<GraphParts>(origin.cuda())) {}

Result<std::unique_ptr<Capture>> Capture::begin(CudaQueue& origin, CaptureMode mode, Memory memory) {
  if (origin.capture() != nullptr)
    return Error(Code::kInvalidUsage, Layer::kQueue, "the queue captures a graph already; end that capture first");
  CudaDevice& cuda = origin.cuda();
  // What was recorded before gets its timepoint now: until the capture ends, nothing can be submitted.
  BERTH_TRY(origin.submit());
  std::unique_ptr<Capture> capture(new Capture(origin, mode, std::move(memory)));
  const ContextScope scope(cuda);
  BERTH_TRY(scope.check(Layer::kQueue));
  // From now on frees are put off: one on a capturing stream would become part of the graph.
  cuda.capture_began();
  if (const Status status = cuda.driver().cuStreamBeginCapture(origin.stream(), mode); status != kSuccess) {
    cuda.capture_ended();
    return cuda.driver().error(status, "cuStreamBeginCapture", Layer::kQueue);
  }
  capture->active_ = true;
  if (mode == kCaptureGlobal) global_captures.fetch_add(1, std::memory_order_acq_rel);
  if (mode != kCaptureRelaxed) ++own_captures;
  origin.set_capture(capture.get());
  return capture;
}

Capture::~Capture() {
  if (!active_) return;
  const ContextScope scope(cuda_, 2);
  cuda_.record(scope);
  Graph graph = nullptr;
  // An invalid capture, or one with queues that could not be joined, ends with an error and without a graph.
  try {
    static_cast<void>(join_all());
  } catch (...) {
    // No host memory to join.
  }
  const Status status = end_capture(&graph);
  if (status == kSuccess && graph != nullptr) cuda_.record(cuda_.driver().cuGraphDestroy(graph), "cuGraphDestroy");
  leave();
}

// A stream that stays in its capture is of no use to anybody, so what only this call can refuse is retried once.
Status Capture::end_capture(Graph* graph) noexcept {
  const Driver& driver = cuda_.driver();
  const Status status = driver.cuStreamEndCapture(origin_.stream(), graph);
  const bool ended = status == kSuccess || (status >= kErrorCaptureUnsupported && status <= kErrorCaptureWrongThread);
  return ended ? status : driver.cuStreamEndCapture(origin_.stream(), graph);
}

// Undoes what begin() has set.
void Capture::leave() noexcept {
  active_ = false;
  origin_.set_capture(nullptr);
  {
    const MutexLock lock(mutex_);
    for (const Side& side : sides_) side.queue->set_capture(nullptr);
    sides_.clear();
  }
  if (mode_ == kCaptureGlobal) global_captures.fetch_sub(1, std::memory_order_acq_rel);
  if (mode_ != kCaptureRelaxed) --own_captures;
  cuda_.capture_ended();
}

CudaQueue* Capture::find(TimelineId timeline) const noexcept {
  if (origin_.timeline() == timeline) return &origin_;
  const MutexLock lock(mutex_);
  for (const Side& side : sides_)
    if (side.queue->timeline() == timeline) return side.queue;
  return nullptr;
}

bool Capture::all_joined() const noexcept {
  const MutexLock lock(mutex_);
  return std::all_of(sides_.begin(), sides_.end(), [](const Side& side) { return side.joined; });
}

Result<void> Capture::fork(CudaQueue& queue) {
  if (&queue.cuda() != &cuda_)
    return Error(Code::kInvalidArgument, Layer::kQueue, "a capture on CUDA:{} cannot fork to a queue of CUDA:{}",
                 cuda_.ordinal(), queue.cuda().ordinal());
  if (&queue == &origin_ || (queue.capture() != nullptr && queue.capture() != this))
    return Error(Code::kInvalidUsage, Layer::kQueue, "the queue captures a graph already; fork to another queue");
  {
    const MutexLock lock(mutex_);
    sides_.reserve(sides_.size() + 1);
  }
  if (queue.capture() == nullptr) BERTH_TRY(queue.submit());
  BERTH_TRY(origin_.order_before(queue));
  const MutexLock lock(mutex_);
  if (queue.capture() == nullptr) {
    sides_.push_back({&queue, false});
    queue.set_capture(this);
  }
  for (Side& side : sides_)
    if (side.queue == &queue) side.joined = false;
  return {};
}

Result<void> Capture::join(CudaQueue& queue) {
  if (queue.capture() != this || &queue == &origin_)
    return Error(Code::kInvalidUsage, Layer::kQueue, "the queue is not part of this capture: fork to it first");
  BERTH_TRY(queue.order_before(origin_));
  {
    const MutexLock lock(mutex_);
    for (Side& side : sides_)
      if (side.queue == &queue) side.joined = true;
  }
  if (all_joined()) memory_.on_joined();
  return {};
}

Result<void> Capture::join_all() {
  while (true) {
    CudaQueue* queue = nullptr;
    {
      const MutexLock lock(mutex_);
      for (const Side& side : sides_)
        if (!side.joined) queue = side.queue;
    }
    if (queue == nullptr) return {};
    BERTH_TRY(join(*queue));
  }
}

Result<void> Capture::check_thread() const {
  if (mode_ == kCaptureRelaxed || thread_ == std::this_thread::get_id()) return {};
  return Error(Code::kInvalidUsage, Layer::kQueue,
               "a capture ends on the thread on which it began, unless its mode is relaxed");
}

Result<Graph> Capture::end() {
  const ContextScope scope(cuda_, 2);
  Result<void> joined = scope.check(Layer::kQueue);
  if (joined) joined = join_all();
  const Driver& driver = cuda_.driver();
  Graph graph = nullptr;
  const Status status = end_capture(&graph);
  leave();
  std::optional<Error> error;
  {
    const MutexLock lock(mutex_);
    error = spoilt_;
  }
  if (!error && !joined) error = joined.error();
  if (!error && status != kSuccess) error = driver.error(status, "cuStreamEndCapture", Layer::kQueue);
  if (!error) return graph;
  if (status == kSuccess && graph != nullptr) cuda_.record(driver.cuGraphDestroy(graph), "cuGraphDestroy");
  return *error;
}

Result<void> Capture::check(const CudaQueue& queue) const {
  const MutexLock lock(mutex_);
  for (const Side& side : sides_)
    if (side.queue == &queue && side.joined)
      return Error(Code::kInvalidUsage, Layer::kQueue,
                   "the queue was joined and takes no part in the capture any more: fork to it again");
  return {};
}

void Capture::use(const Window& window) {
  if (memory_.is_of_pool(window.block)) return;
  const MutexLock lock(mutex_);
  parts_->keep(window);
}

void Capture::use(const Kernel& kernel) {
  const MutexLock lock(mutex_);
  parts_->keep(kernel);
}

Result<const std::byte*> Capture::use(std::span<const std::byte> bytes) {
  const MutexLock lock(mutex_);
  return parts_->keep(bytes);
}

void Capture::spoil(const Error& error) noexcept {
  const MutexLock lock(mutex_);
  if (!spoilt_) spoilt_ = error;
}

std::unique_ptr<GraphParts> Capture::take_parts() noexcept {
  const MutexLock lock(mutex_);
  return std::move(parts_);
}

}  // namespace berth::internal::cuda
