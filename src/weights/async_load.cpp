#include "berth/weights/async_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/os/read_ring.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "berth/memory/queue.h"
#include "berth/memory/registry.h"
#include "weights/load.h"
#include "weights/load_plan.h"
#include "weights/read_job.h"

namespace berth {

using namespace internal;
using namespace internal::formats;

namespace {

// A timeline that readers move on. Nothing can be recorded on it but the uses of what will arrive.
class ArrivalQueue final : public Queue {
 public:
  explicit ArrivalQueue(Device& device) : Queue(device), reached_(next().value() - 1), arrived_(next().value() - 1) {}
  ~ArrivalQueue() override { close(); }

  void reach(std::uint64_t value) {
    const MutexLock lock(mutex_);
    arrived_ = value;
    reached_.store(value, std::memory_order_release);
    changed_.notify_all();
  }
  // False if the time was over first.
  Result<bool> wait_until(std::uint64_t value, std::chrono::steady_clock::time_point until) {
    const MutexLock lock(mutex_);
    while (arrived_ < value && !error_)
      if (!changed_.wait_until(mutex_, until)) break;
    if (arrived_ >= value) return true;
    if (error_) return *error_;
    return false;
  }
  // What is not reached never will be. The first error stays.
  void fail(const Error& error) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = error;
    changed_.notify_all();
  }

 protected:
  Result<void> do_write(const Window&, std::span<const std::byte>) override { return nothing(); }
  Result<void> do_read(const Window&, std::span<std::byte>) override { return nothing(); }
  Result<void> do_copy(const Window&, const Window&) override { return nothing(); }
  Result<void> do_fill(const Window&, std::uint8_t) override { return nothing(); }
  Result<void> do_record_native(std::span<const Window>, const std::function<Result<void>(void*)>&) override {
    return {};
  }
  Result<void> do_submit(std::uint64_t) override { return {}; }
  Result<void> do_wait(std::uint64_t value) override {
    const MutexLock lock(mutex_);
    while (arrived_ < value && !error_) changed_.wait(mutex_);
    if (arrived_ < value) return *error_;
    return {};
  }
  std::uint64_t poll() noexcept override { return reached_.load(std::memory_order_acquire); }

 private:
  static Error nothing() { return Error(Code::kUnsupported, Layer::kFormat, "a timeline of arrivals runs nothing"); }

  Mutex mutex_;
  CondVar changed_;
  std::atomic<std::uint64_t> reached_;              // for poll(), which takes no lock
  std::uint64_t arrived_ BERTH_GUARDED_BY(mutex_);  // the same, for those who wait: none misses its change
  std::optional<Error> error_ BERTH_GUARDED_BY(mutex_);
};

unsigned readers_of(const AsyncLoadOptions& options, std::size_t jobs) {
  const unsigned wanted = options.readers != 0 ? options.readers : std::min(8u, std::thread::hardware_concurrency());
  return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(jobs, 1)));
}

}  // namespace

std::string_view to_string(ReadMethod method) noexcept {
  return method == ReadMethod::kRing ? "ring" : "threads";
}

struct AsyncLoad::State {
  std::shared_ptr<const std::vector<FileSource>> sources;
  DevicePtr device;
  LoadPlan plan{};
  std::vector<Timepoint> arrivals{};
  ReadMethod method = ReadMethod::kThreads;

  std::vector<Window> held{};  // the memory stays, and does not move, while it is written
  std::vector<std::byte*> targets{};
  bool on_host = true;
  QueuePtr uploads{};
  std::unique_ptr<ReadRing> ring{};
  std::unique_ptr<ArrivalQueue> timeline{};
  std::uint64_t first_value = 0;

  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  Mutex mutex{};
  std::vector<std::uint64_t> missing BERTH_GUARDED_BY(mutex){};  // bytes by request
  std::size_t arrived BERTH_GUARDED_BY(mutex) = 0;               // so many requests from the first
  unsigned readers BERTH_GUARDED_BY(mutex) = 0;
  std::optional<Error> failure BERTH_GUARDED_BY(mutex){};
  std::vector<std::jthread> threads{};

  ~State() {
    stop(Error(Code::kCancelled, Layer::kFormat, "the load was dropped before its tensors had arrived"));
    threads.clear();  // joins
    ring.reset();     // waits for its reads
    if (uploads != nullptr) static_cast<void>(uploads->finish());
    timeline.reset();
  }

  std::span<const LoadPiece> pieces(std::size_t job) const noexcept {
    return std::span(plan.pieces).subspan(plan.jobs[job].first, plan.jobs[job].last - plan.jobs[job].first);
  }
  const FileSource& source(std::size_t job) const noexcept { return (*sources)[pieces(job).front().file]; }

  // No more jobs are taken. Those that were taken before are earlier in the order, and still arrive: waits see the
  // error when the last reader has left.
  void stop(const Error& error) noexcept {
    stopped.store(true, std::memory_order_release);
    const MutexLock lock(mutex);
    if (!failure) failure = error;
    if (readers == 0 && timeline != nullptr) timeline->fail(*failure);
  }
  void enter() noexcept {
    const MutexLock lock(mutex);
    ++readers;
  }
  void leave() noexcept {
    const MutexLock lock(mutex);
    if (--readers == 0 && failure) timeline->fail(*failure);
  }

  void arrive(std::span<const LoadPiece> done) {
    const MutexLock lock(mutex);
    for (const LoadPiece& piece : done) missing[piece.request] -= piece.bytes;
    const std::size_t before = arrived;
    while (arrived < missing.size() && missing[arrived] == 0) ++arrived;
    if (arrived != before) timeline->reach(first_value + arrived - 1);
  }

  // Runs `work()` and turns what it throws or returns into the error of the load.
  template <class Work>
  void guarded(const Work& work) noexcept {
    try {
      if (auto done = work(); !done) stop(done.error());
    } catch (const std::exception& error) {
      stop(Error(Code::kOutOfMemory, Layer::kFormat, "no host memory to read weights"));
    }
    leave();
  }

  std::optional<std::size_t> take_job() noexcept {
    if (stopped.load(std::memory_order_acquire)) return std::nullopt;
    const std::size_t job = next.fetch_add(1, std::memory_order_relaxed);
    return job < plan.jobs.size() ? std::optional(job) : std::nullopt;
  }

  Result<void> read_to_host() {
    while (const auto job = take_job()) {
      BERTH_TRY(read_scattered(source(*job), pieces(*job), targets));
      arrive(pieces(*job));
    }
    return {};
  }

  // Through memory of this thread. Its write returns when the bytes are staged, so that another reader's upload and
  // this one's next read overlap.
  Result<void> read_and_upload() {
    BERTH_TRY_ASSIGN(const DevicePtr host, berth::device("CPU"));
    BERTH_TRY_ASSIGN(const Buffer staging,
                     Buffer::allocate(host, DType::kU8, {kJobBytes}, {.label = "weights staging"}));
    BERTH_TRY_ASSIGN(const std::span<std::byte> bytes, staging.as_host_bytes_mut());
    while (const auto job = take_job()) {
      const auto all = pieces(*job);
      const std::uint64_t begin = all.front().offset;
      BERTH_TRY(source(*job).read(begin, bytes.first(all.back().offset + all.back().bytes - begin)));
      for (const LoadPiece& piece : all) {
        Window window = held[piece.request];
        window.offset += piece.target;
        window.bytes = piece.bytes;
        BERTH_TRY(uploads->write(window, bytes.subspan(piece.offset - begin, piece.bytes)));
      }
      BERTH_TRY_ASSIGN(const Timepoint sent, uploads->submit());
      BERTH_TRY(berth::wait(sent));
      arrive(all);
    }
    return {};
  }

  Result<void> read_with_ring(unsigned depth) {
    struct Slot {
      ScatteredRead read;
      std::size_t job;
    };
    std::vector<std::unique_ptr<Slot>> slots;
    std::vector<std::size_t> idle;
    for (unsigned i = 0; i < depth; ++i) {
      slots.push_back(std::make_unique<Slot>());
      idle.push_back(i);
    }
    // The reads write to the slots' gaps: whatever happens below, they end before the slots do.
    struct End {
      std::unique_ptr<ReadRing>& ring;
      ~End() { ring.reset(); }
    } const end{ring};
    bool more = true;
    while (true) {
      while (more && !idle.empty()) {
        const auto job = take_job();
        more = job.has_value();
        if (!more) break;
        Slot& slot = *slots[idle.back()];
        slot.job = *job;
        slot.read.set(pieces(*job), targets);
        ring->read(source(*job).descriptor(), slot.read.parts.data(), slot.read.count, slot.read.offset, idle.back());
        idle.pop_back();
      }
      if (idle.size() == slots.size()) return {};
      BERTH_TRY_ASSIGN(const ReadRing::Done done, ring->wait());
      Slot& slot = *slots[done.tag];
      idle.push_back(done.tag);
      // A short or failed read is made again in the plain way, which goes on where a call stops and explains errors.
      if (done.result != static_cast<std::int64_t>(slot.read.bytes))
        if (auto again = read_scattered(source(slot.job), pieces(slot.job), targets); !again) {
          stop(again.error());
          continue;  // the other reads in progress still arrive
        }
      arrive(pieces(slot.job));
    }
  }

  Result<void> start(const AsyncLoadOptions& options);
};

// Before this, nothing runs in the background.
Result<void> AsyncLoad::State::start(const AsyncLoadOptions& options) {
  const std::size_t count = plan.buffers.size();
  held.reserve(count);
  targets.assign(count, nullptr);
  for (std::size_t i = 0; i < count; ++i) {
    BERTH_TRY_ASSIGN(const Window window, plan.buffers[i].window());
    on_host = on_host && (window.bytes == 0 || window.block.has(BlockFlags::kHostTransfer));
    targets[i] = window.host_bytes().data();
    held.push_back(window);
  }
  // In the order requested, whatever the order in the file.
  const auto first_request = [&](const LoadJob& job) {
    std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = job.first; i < job.last; ++i) lowest = std::min(lowest, plan.pieces[i].request);
    return lowest;
  };
  std::vector<std::pair<std::uint32_t, LoadJob>> order;
  order.reserve(plan.jobs.size());
  for (const LoadJob& job : plan.jobs) order.emplace_back(first_request(job), job);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < order.size(); ++i) plan.jobs[i] = order[i].second;

  timeline = std::make_unique<ArrivalQueue>(*device);
  first_value = timeline->next().value();
  for (const Window& window : held) {
    BERTH_TRY(timeline->record_native(std::span(&window, 1), {}));
    BERTH_TRY_ASSIGN(const Timepoint arrival, timeline->submit());
    arrivals.push_back(arrival);
  }
  {
    const MutexLock lock(mutex);
    missing.assign(count, 0);
    for (const LoadPiece& piece : plan.pieces) missing[piece.request] += piece.bytes;
  }
  arrive({});  // tensors without bytes

  const unsigned wanted = readers_of(options, plan.jobs.size());
  if (!on_host) {
    BERTH_TRY_ASSIGN(uploads, device->make_queue());
  } else if (options.method == ReadMethod::kRing) {
    if (auto made = ReadRing::make(wanted)) {
      ring = *std::move(made);
      method = ReadMethod::kRing;
    }
  }
  const auto work = [this, wanted] {
    guarded([&] { return !on_host ? read_and_upload() : ring != nullptr ? read_with_ring(wanted) : read_to_host(); });
  };
  for (unsigned i = 0; i < (method == ReadMethod::kRing ? 1 : wanted); ++i) {
    enter();
    try {
      threads.emplace_back(work);
    } catch (const std::system_error& refused) {
      leave();
      if (threads.empty()) return Error::with_text(Code::kIo, Layer::kFormat, refused.what());
      break;
    }
  }
  return {};
}

AsyncLoad::AsyncLoad(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
AsyncLoad::AsyncLoad(AsyncLoad&& other) noexcept = default;
AsyncLoad& AsyncLoad::operator=(AsyncLoad&& other) noexcept = default;
AsyncLoad::~AsyncLoad() = default;

std::span<const Buffer> AsyncLoad::buffers() const& noexcept {
  return state_->plan.buffers;
}
std::span<const Timepoint> AsyncLoad::arrivals() const& noexcept {
  return state_->arrivals;
}
ReadMethod AsyncLoad::method() const noexcept {
  return state_->method;
}

Result<void> AsyncLoad::finish() {
  if (state_->arrivals.empty()) return {};
  return berth::wait(state_->arrivals.back());
}

Result<bool> AsyncLoad::wait(std::size_t index, std::chrono::nanoseconds at_most) const {
  // Beyond this, the sum of the clock and the duration may not fit.
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  return state_->timeline->wait_until(state_->arrivals[index].value(),
                                      std::chrono::steady_clock::now() + std::min(at_most, kLongest));
}

void AsyncLoad::cancel() noexcept {
  state_->stop(Error(Code::kCancelled, Layer::kFormat, "the load was cancelled before its tensors had arrived"));
}

Result<AsyncLoad> load_async(const WeightFile& file, std::span<const std::string_view> names,
                             const AllocatorPtr& allocator, const AsyncLoadOptions& options) {
  if (allocator == nullptr) return Error(Code::kInvalidArgument, Layer::kFormat, "load needs a device or an allocator");
  BERTH_TRY_ASSIGN(const std::vector<LoadRequest> requests, WeightAccess::requests(file, names));
  auto state = std::make_unique<AsyncLoad::State>();
  state->sources = WeightAccess::sources(file);
  state->device = allocator->device().shared_from_this();
  if (!requests.empty()) {
    LoadOptions as_load;
    as_load.share_below = options.share_below;
    as_load.buffer = options.buffer;
    BERTH_TRY_ASSIGN(state->plan, plan_load(requests, allocator, as_load));
    BERTH_TRY(state->start(options));
  }
  return AsyncLoad(std::move(state));
}

Result<AsyncLoad> load_all_async(const WeightFile& file, const AllocatorPtr& allocator,
                                 const AsyncLoadOptions& options) {
  std::vector<std::string_view> names;
  names.reserve(file.tensors().size());
  for (const TensorInfo& info : file.tensors()) names.push_back(info.name);
  return load_async(file, names, allocator, options);
}

}  // namespace berth
