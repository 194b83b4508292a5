#include "berth/interop/cuda_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "base/round_up.h"
#include "base/try.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/base/mutex.h"
#include "devices/cuda/cuda_capture.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/cuda_queue.h"
#include "memory/check_alignment.h"
#include "memory/movable.h"
#include "memory/uses.h"

namespace berth {

using namespace internal;

namespace {

// Small requests share slabs of this size; larger ones get a slab of their own size. 2 MiB is the driver's unit.
constexpr std::size_t kSlabBytes = std::size_t{2} << 20;
constexpr std::size_t kDriverAlignment = 256;

Result<cuda::CudaQueue*> as_cuda(Queue& queue) {
  auto* const cuda = dynamic_cast<cuda::CudaQueue*>(&queue);
  if (cuda == nullptr)
    return Error::with_text(
        Code::kInvalidArgument, Layer::kInterop,
        fmt::format("a queue of {} cannot capture or launch a CUDA graph; make one of device(\"CUDA:0\")",
                    queue.device().name()));
  return cuda;
}

// A timepoint in the form in which uses.h waits for it, also if it is not submitted yet.
struct Use final : BlockOwner {
  explicit Use(Timepoint moment) { last_use.store(moment.bits, std::memory_order_relaxed); }
  void retain() noexcept override {}
  void drop() noexcept override {}
};

class GraphPool final : public CudaGraphPool, public Mover {
 public:
  explicit GraphPool(std::shared_ptr<cuda::CudaDevice> device) : cuda_(std::move(device)) {}

  ~GraphPool() override {
    // Graphs have waited for their launches. What else used the memory last may still run.
    const cuda::ContextScope scope(*cuda_, 2);
    cuda_->record(scope);
    const cuda::UnsafeCalls unsafe(cuda_->driver());
    for (const Timepoint use : outside_uses_) static_cast<void>(finish(use));
    for (const Slab& slab : slabs_) {
      cuda_->record(cuda_->driver().cuMemFree(slab.start), "cuMemFree");
      cuda_->discharge(label_, slab.bytes);
    }
  }

  std::string_view name() const noexcept override { return "CUDA graph pool"; }
  Device& device() noexcept override { return *cuda_; }
  BlockFlags expected_flags(const BlockSpec&) noexcept override { return BlockFlags::kNone; }
  void explain(OutOfMemory& report) const override { cuda_->explain(report); }

  Result<Block> allocate(const BlockSpec& spec) override {
    BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
    if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
    if (spec.host == HostAccess::kRequired)
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "{} bytes with a host pointer: memory of a graph is device memory", spec.bytes);
    cuda::CudaQueue* queue = nullptr;
    Result<Block> block = [&]() -> Result<Block> {
      const MutexLock lock(mutex_);
      if (capture_ == nullptr)
        return Error(Code::kInvalidUsage, Layer::kAllocator,
                     "{} bytes of a graph's pool while no capture with it is in progress: a launch could overwrite "
                     "them; allocate them from the device",
                     spec.bytes);
      queue = spec.on == TimelineId::kNone ? &capture_->origin() : capture_->find(spec.on);
      if (queue == nullptr)
        return Error(Code::kInvalidUsage, Layer::kAllocator,
                     "{} bytes of a graph's pool for a queue that is not part of the capture", spec.bytes);
      return take(spec);
    }();
    if (!block || !spec.zero) return block;
    // Zeroed by the graph, at each launch.
    if (auto zeroed = zero(*queue, *block); !zeroed) {
      release(*block, {});
      return zeroed.error();
    }
    return block;
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    if (block.bytes == 0) return;
    const MutexLock lock(mutex_);
    const auto found = live_.find(block.handle);
    if (found == live_.end()) return;
    const Place place = found->second.place;
    live_.erase(found);
    live_bytes_ -= block.bytes;
    try {
      // Work outside of graphs may still use it: later launches wait for that.
      if (!is_reached(last_use)) add_use(last_use);
      if (capture_ != nullptr && !capture_->all_joined()) {
        waiting_.push_back(place);
        return;
      }
    } catch (...) {
      // No host memory to remember this: the range is not used again.
      return;
    }
    give(place);
  }

  CudaGraphPoolCounters counters() const override {
    const MutexLock lock(mutex_);
    CudaGraphPoolCounters counters{
        .slabs = slabs_.size(), .live_bytes = live_bytes_, .live_blocks = live_.size(), .graphs = graphs_};
    for (const Slab& slab : slabs_) counters.bytes += slab.bytes;
    return counters;
  }

  // Mover: blocks of this pool never move, but the pool must know their owners, which a launch uses.
  Mover* mover() noexcept override { return this; }
  Result<Block> allocate_movable(const BlockSpec& spec, std::uint64_t& start) override {
    start = 0;
    return allocate(spec);
  }
  bool enlist(const Block& block, std::size_t, MovableOwner& owner) noexcept override {
    const MutexLock lock(mutex_);
    const auto found = live_.find(block.handle);
    if (found == live_.end()) return false;
    found->second.owner = &owner;
    return true;
  }
  Result<void> complete(MovableOwner&) override { return {}; }

  // --- For captures ---
  Result<void> begin(const auto& make_capture) {
    {
      const MutexLock lock(mutex_);
      if (busy_)
        return Error(Code::kInvalidUsage, Layer::kInterop,
                     "another capture with this pool is in progress; end it first, or use another pool");
      busy_ = true;
    }
    // Whatever happens, only a capture that has begun keeps the pool busy.
    Result<cuda::Capture*> capture = nullptr;
    try {
      capture = make_capture();
    } catch (...) {
      end();
      throw;
    }
    const MutexLock lock(mutex_);
    busy_ = static_cast<bool>(capture);
    if (!capture) return capture.error();
    capture_ = *capture;
    return {};
  }
  void end() noexcept {
    const MutexLock lock(mutex_);
    capture_ = nullptr;
    busy_ = false;
    give_waiting();
  }
  void joined() noexcept {
    const MutexLock lock(mutex_);
    give_waiting();
  }
  bool owns(const Block& block) const noexcept {
    const MutexLock lock(mutex_);
    return std::any_of(slabs_.begin(), slabs_.end(), [&](const Slab& slab) {
      return block.handle >= slab.start && block.handle < slab.start + slab.bytes;
    });
  }

  // --- For graphs ---
  void count_graph(int sign) noexcept {
    const MutexLock lock(mutex_);
    graphs_ += static_cast<std::size_t>(sign);
  }

  // Records a launch by `put(stream)` on the queue, after all other launches with this pool, as a use of `windows` and
  // of all live blocks. Returns the timepoint that the next submit reaches.
  Result<Timepoint> launch(Queue& queue, std::span<const Window> windows,
                           const std::function<Result<void>(void*)>& put) {
    const MutexLock turn(launch_mutex_);
    std::vector<Window> uses(windows.begin(), windows.end());
    std::vector<Timepoint> before;
    const std::size_t others = uses.size();
    // The references are dropped without any lock of the pool: a drop may release.
    struct Retained {
      std::vector<Window>& uses;
      std::size_t from;
      ~Retained() {
        for (std::size_t i = from; i < uses.size(); ++i) uses[i].owner->drop();
      }
    } const retained{uses, others};
    {
      const MutexLock lock(mutex_);
      uses.reserve(others + live_.size());
      std::erase_if(outside_uses_, [](Timepoint use) { return is_reached(use); });
      before = outside_uses_;
      for (const auto& [handle, one] : live_)
        if (one.owner != nullptr && one.owner->try_retain())
          uses.push_back({one.block, 0, one.block.bytes, one.owner, cuda_.get(), {}});
    }
    before.push_back(last_launch_);
    for (const Timepoint moment : before) {
      Use use(moment);
      BERTH_TRY(wait_for_uses(queue, use));
    }
    Timepoint launched;
    BERTH_TRY(queue.record_native(uses, [&](void* stream) {
      launched = queue.next();
      return put(stream);
    }));
    last_launch_ = launched;
    return launched;
  }

 private:
  struct Slab {
    cuda::Address start;
    std::size_t bytes;
    OffsetAllocator offsets;
  };
  struct Place {
    std::size_t slab;
    std::uint64_t offset;
  };
  struct Live {
    Block block;
    Place place;
    MovableOwner* owner;
  };

  Result<Block> take(const BlockSpec& spec) BERTH_REQUIRES(mutex_) {
    // The driver aligns slabs to 256 bytes, so a stricter alignment needs room.
    const std::size_t slack = spec.alignment > kDriverAlignment ? spec.alignment : 0;
    const std::size_t bytes = spec.bytes + slack;
    if (bytes < spec.bytes || bytes > cuda_->limits().total_bytes)
      return Error(Code::kOutOfMemory, Layer::kAllocator, "{} bytes for a graph, and the device has {}", spec.bytes,
                   cuda_->limits().total_bytes);
    for (std::size_t i = 0; i < slabs_.size(); ++i)
      if (auto offset = slabs_[i].offsets.allocate(bytes, 1)) return hand_out(spec, {i, *offset});
    BERTH_TRY(add_slab(spec, bytes));
    BERTH_TRY_ASSIGN(const std::uint64_t offset, slabs_.back().offsets.allocate(bytes, 1));
    return hand_out(spec, {slabs_.size() - 1, offset});
  }

  Result<Block> hand_out(const BlockSpec& spec, Place place) BERTH_REQUIRES(mutex_) {
    const std::uint64_t start = slabs_[place.slab].start + place.offset;
    const Block block{.handle = (start + spec.alignment - 1) / spec.alignment * spec.alignment,
                      .bytes = spec.bytes,
                      .label = spec.label,
                      .usage = spec.usage};
    try {
      waiting_.reserve(live_.size() + waiting_.size() + 1);
      live_.emplace(block.handle, Live{block, place, nullptr});
    } catch (...) {
      give(place);
      throw;
    }
    live_bytes_ += block.bytes;
    return block;
  }

  Result<void> add_slab(const BlockSpec& spec, std::size_t bytes) BERTH_REQUIRES(mutex_) {
    // So large that the first request always fits, whatever size class it falls into.
    const std::size_t slab_bytes = round_up(std::max(kSlabBytes, bytes + bytes / 32 + kDriverAlignment), kSlabBytes);
    BERTH_TRY_ASSIGN(OffsetAllocator offsets, OffsetAllocator::make(slab_bytes, kDriverAlignment));
    slabs_.reserve(slabs_.size() + 1);
    BlockSpec whole = spec;
    whole.bytes = slab_bytes;
    whole.label = label_;
    BERTH_TRY_ASSIGN(Charge charge, cuda_->charge(whole, slab_bytes));
    const cuda::ContextScope scope(*cuda_);
    BERTH_TRY(scope.check(Layer::kAllocator));
    const cuda::UnsafeCalls unsafe(cuda_->driver());
    cuda::Address start = 0;
    if (const cuda::Status status = cuda_->driver().cuMemAlloc(&start, slab_bytes); status != cuda::kSuccess)
      return cuda_->driver().error(status, "cuMemAlloc", Layer::kAllocator);
    charge.keep();
    slabs_.push_back({start, slab_bytes, std::move(offsets)});
    return {};
  }

  Result<void> zero(cuda::CudaQueue& queue, const Block& block) {
    Window window{block, 0, block.bytes, nullptr, cuda_.get(), {}};
    window.block.usage = Usage::kAll;
    return queue.fill(window, 0);
  }

  void give(Place place) noexcept BERTH_REQUIRES(mutex_) {
    static_cast<void>(slabs_[place.slab].offsets.release(place.offset));
  }
  void give_waiting() noexcept BERTH_REQUIRES(mutex_) {
    for (const Place place : waiting_) give(place);
    waiting_.clear();
  }
  void add_use(Timepoint use) BERTH_REQUIRES(mutex_) {
    for (Timepoint& other : outside_uses_)
      if (other.timeline() == use.timeline()) {
        if (other.value() < use.value()) other = use;
        return;
      }
    outside_uses_.push_back(use);
  }

  const std::shared_ptr<cuda::CudaDevice> cuda_;
  const Name label_ = "CUDA graphs";
  Mutex launch_mutex_;  // above the locks of queues
  Timepoint last_launch_ BERTH_GUARDED_BY(launch_mutex_);
  mutable Mutex mutex_;  // below the locks of queues
  cuda::Capture* capture_ BERTH_GUARDED_BY(mutex_) = nullptr;
  bool busy_ BERTH_GUARDED_BY(mutex_) = false;
  std::vector<Slab> slabs_ BERTH_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Live> live_ BERTH_GUARDED_BY(mutex_);
  std::vector<Place> waiting_ BERTH_GUARDED_BY(mutex_);  // released while queues were forked
  std::vector<Timepoint> outside_uses_ BERTH_GUARDED_BY(mutex_);
  std::size_t live_bytes_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t graphs_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::string to_string(const CudaGraphPoolCounters& counters) {
  return fields({{"bytes", counters.bytes},
                 {"slabs", counters.slabs},
                 {"live_bytes", counters.live_bytes},
                 {"live_blocks", counters.live_blocks},
                 {"graphs", counters.graphs}});
}

Result<CudaGraphPoolPtr> make_cuda_graph_pool(DevicePtr device) {
  auto cuda = std::dynamic_pointer_cast<cuda::CudaDevice>(device);
  if (cuda == nullptr)
    return Error(Code::kInvalidArgument, Layer::kInterop,
                 "a pool of CUDA graphs needs a CUDA device; open one with device(\"CUDA:0\")");
  return CudaGraphPoolPtr(std::make_shared<GraphPool>(std::move(cuda)));
}

struct CudaGraph::State {
  State(std::shared_ptr<cuda::CudaDevice> on, CudaGraphPoolPtr memory)
      : device(std::move(on)), pool(std::move(memory)) {
    graph_pool().count_graph(+1);
  }

  std::shared_ptr<cuda::CudaDevice> device;
  CudaGraphPoolPtr pool;
  std::unique_ptr<cuda::GraphParts> parts;
  cuda::GraphExec exec = nullptr;
  Mutex mutex;
  Timepoint last BERTH_GUARDED_BY(mutex);

  GraphPool& graph_pool() const { return static_cast<GraphPool&>(*pool); }

  ~State() {
    const cuda::ContextScope scope(*device, 2);
    device->record(scope);
    const cuda::UnsafeCalls unsafe(device->driver());
    // A failure means that the device is lost, and its work over.
    static_cast<void>(finish(last));
    if (exec != nullptr) device->record(device->driver().cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    graph_pool().count_graph(-1);
  }
};

CudaGraph::CudaGraph(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaGraph::CudaGraph(CudaGraph&& other) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept = default;
CudaGraph::~CudaGraph() = default;

const CudaGraphPoolPtr& CudaGraph::pool() const noexcept {
  return state_->pool;
}

Result<Timepoint> CudaGraph::launch(Queue& queue) {
  BERTH_TRY_ASSIGN(const cuda::CudaQueue* const on, as_cuda(queue));
  if (&on->cuda() != state_->device.get())
    return Error(Code::kInvalidArgument, Layer::kInterop, "a graph of CUDA:{} on a queue of CUDA:{}",
                 state_->device->ordinal(), on->cuda().ordinal());
  if (on->capture() != nullptr)
    return Error(Code::kInvalidUsage, Layer::kInterop,
                 "a graph cannot be part of another: launch it on a queue that does not capture");
  const cuda::Driver& driver = state_->device->driver();
  BERTH_TRY_ASSIGN(const Timepoint launched,
                   state_->graph_pool().launch(queue, state_->parts->windows(), [&](void* stream) -> Result<void> {
                     const cuda::Status status = driver.cuGraphLaunch(state_->exec, static_cast<cuda::Stream>(stream));
                     if (status != cuda::kSuccess) return driver.error(status, "cuGraphLaunch", Layer::kInterop);
                     return {};
                   }));
  {
    const MutexLock lock(state_->mutex);
    state_->last = launched;
  }
  return queue.submit();
}

struct CudaCapture::State {
  std::shared_ptr<cuda::CudaDevice> device;
  CudaGraphPoolPtr pool;
  QueuePtr queue;
  std::vector<QueuePtr> sides{};
  std::unique_ptr<cuda::Capture> capture{};

  GraphPool& graph_pool() const { return static_cast<GraphPool&>(*pool); }

  // Captured work was recorded and is no longer to come: its timepoints are reached with what ran before it. Memory
  // that it would have used may be freed on these queues, so they are ordered after its allocation now, which recording
  // does.
  void submit_all() const {
    const auto submit = [](Queue& one) {
      const auto order = [&] { return one.record_native({}, [](void*) { return Result<void>(); }); };
      if (!order()) static_cast<void>(order());
      static_cast<void>(one.submit());
    };
    submit(*queue);
    for (const QueuePtr& side : sides) submit(*side);
  }

  ~State() {
    if (capture == nullptr) return;
    // The pool forgets the capture first: what it kept may be released as it goes.
    const auto parts = capture->take_parts();
    graph_pool().end();
    capture.reset();
    try {
      submit_all();
    } catch (...) {
      // No host memory: the next submit of each queue does it.
    }
  }
};

CudaCapture::CudaCapture(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaCapture::CudaCapture(CudaCapture&& other) noexcept = default;
CudaCapture::~CudaCapture() = default;

Result<CudaCapture> CudaCapture::begin(QueuePtr queue, CudaCaptureOptions options) {
  if (queue == nullptr)
    return Error(Code::kInvalidArgument, Layer::kInterop, "a capture needs a queue; make one with make_queue()");
  BERTH_TRY_ASSIGN(cuda::CudaQueue* const origin, as_cuda(*queue));
  auto device = std::static_pointer_cast<cuda::CudaDevice>(queue->device().shared_from_this());
  if (options.pool == nullptr) options.pool = std::make_shared<GraphPool>(device);
  auto* const pool = dynamic_cast<GraphPool*>(options.pool.get());
  if (pool == nullptr || &pool->device() != device.get())
    return Error(Code::kInvalidArgument, Layer::kInterop,
                 "the pool is not one of make_cuda_graph_pool() on the device of the queue");
  std::unique_ptr<State> state(new State{std::move(device), std::move(options.pool), std::move(queue)});
  constexpr cuda::CaptureMode kModes[] = {cuda::kCaptureGlobal, cuda::kCaptureThreadLocal, cuda::kCaptureRelaxed};
  BERTH_TRY(pool->begin([&]() -> Result<cuda::Capture*> {
    BERTH_TRY_ASSIGN(state->capture,
                     cuda::Capture::begin(*origin, kModes[static_cast<std::size_t>(options.mode)],
                                          {.is_of_pool = [pool](const Block& block) { return pool->owns(block); },
                                           .on_joined = [pool] { pool->joined(); }}));
    return state->capture.get();
  }));
  return CudaCapture(std::move(state));
}

const CudaGraphPoolPtr& CudaCapture::memory() const noexcept {
  return state_->pool;
}

Result<void> CudaCapture::fork(QueuePtr queue) {
  if (queue == nullptr)
    return Error(Code::kInvalidArgument, Layer::kInterop, "a fork needs a queue; make one with make_queue()");
  if (state_->capture == nullptr)
    return Error(Code::kInvalidUsage, Layer::kInterop, "the capture has ended; begin another");
  BERTH_TRY_ASSIGN(cuda::CudaQueue* const side, as_cuda(*queue));
  state_->sides.reserve(state_->sides.size() + 1);
  BERTH_TRY(state_->capture->fork(*side));
  state_->sides.push_back(std::move(queue));
  return {};
}

Result<void> CudaCapture::join(Queue& queue) {
  if (state_->capture == nullptr)
    return Error(Code::kInvalidUsage, Layer::kInterop, "the capture has ended; begin another");
  BERTH_TRY_ASSIGN(cuda::CudaQueue* const side, as_cuda(queue));
  return state_->capture->join(*side);
}

Result<CudaGraph> CudaCapture::end() {
  if (state_->capture == nullptr)
    return Error(Code::kInvalidUsage, Layer::kInterop, "the capture has ended already; begin another");
  if (auto ends = state_->capture->check_thread(); !ends) return ends.error();
  auto graph = std::make_unique<CudaGraph::State>(state_->device, state_->pool);
  auto captured = state_->capture->end();
  graph->parts = state_->capture->take_parts();
  state_->graph_pool().end();
  state_->capture.reset();
  state_->submit_all();
  if (!captured) return captured.error();
  const cuda::ContextScope scope(*state_->device, 2);
  BERTH_TRY(scope.check(Layer::kInterop));
  const cuda::Driver& driver = state_->device->driver();
  const cuda::Status made = driver.cuGraphInstantiateWithFlags(&graph->exec, *captured, 0);
  state_->device->record(driver.cuGraphDestroy(*captured), "cuGraphDestroy");
  if (made != cuda::kSuccess) {
    graph->exec = nullptr;
    return driver.error(made, "cuGraphInstantiateWithFlags", Layer::kInterop);
  }
  return CudaGraph(std::move(graph));
}

}  // namespace berth
