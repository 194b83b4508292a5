#include "devices/cuda/cuda_queue.h"

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "devices/cuda/cuda_kernel.h"
#include "memory/host_copy.h"

namespace berth::internal::cuda {
namespace {

// The number of pinned pieces that writes of one queue may fill before the oldest is waited for, and that reads may
// keep.
constexpr std::size_t kWritePieces = 8;
constexpr std::size_t kReadPieces = 4;
constexpr std::size_t kPieceBytes = PinnedPool::kPieceBytes;
// Small transfers start at a cache line, so that two of them never share one.
constexpr std::size_t kStagingAlignment = 64;
// The driver refuses longer rows; none is documented below this.
constexpr std::size_t kMaxPitch = 2147483647;

// Such a copy needs scratch memory, which a graph would have to allocate at each launch.
Error overlaps_in_graph(std::size_t bytes) {
  return Error(Code::kUnsupported, Layer::kQueue,
               "a copy of {} bytes onto themselves cannot be part of a graph: copy through another buffer", bytes);
}

Address address_of(const Window& window) noexcept {
  return window.block.handle + window.offset;
}

}  // namespace

CudaDevice* cuda_device_of(const Window& window) noexcept {
  if (window.device == nullptr || typeid(*window.device) != typeid(CudaDevice)) return nullptr;
  return static_cast<CudaDevice*>(window.device);
}

TimelineMap<CudaQueue*>& CudaQueue::timelines() {
  static auto* const map = new TimelineMap<CudaQueue*>;
  return *map;
}

Result<std::unique_ptr<Queue>> CudaQueue::make(CudaDevice& device) {
  const ContextScope scope(device);
  BERTH_TRY(scope.check());
  Stream stream = nullptr;
  if (const Status status = device.driver().cuStreamCreate(&stream, kStreamNonBlocking); status != kSuccess)
    return device.driver().error(status, "cuStreamCreate");
  std::unique_ptr<CudaQueue> queue(new CudaQueue(device, stream));
  // A new queue continues the values of its timeline.
  queue->reached_.store(queue->next().value() - 1, std::memory_order_relaxed);
  timelines().put(queue->timeline(), queue.get());
  return std::unique_ptr<Queue>(std::move(queue));
}

CudaQueue::~CudaQueue() {
  const Driver& driver = cuda_.driver();
  const ContextScope scope(cuda_, 2);
  const UnsafeCalls unsafe(driver);
  // Recorded work runs even if it was never submitted. Until it is done, the queue must be found by its timeline, so
  // that frees are ordered after it.
  cuda_.settle(stream_);
  timelines().remove(timeline(), this);
  close();
  forget_arrivals();
  kernels_.clear();
  flights_.clear();
  for (WritePiece& piece : write_pieces_) {
    piece.left.reset();
    cuda_.pinned().give(piece.memory);
  }
  for (const ReadPiece& piece : read_pieces_) cuda_.pinned().give(piece.memory);
  cuda_.record(driver.cuStreamDestroy(stream_), "cuStreamDestroy");
}

Result<void> CudaQueue::prepare(const CudaDevice* other) {
  BERTH_TRY(check_whole());
  issued_.store(true, std::memory_order_release);
  // The launch of a graph is ordered after what was allocated before it; an event from outside is none of the graph's.
  if (const Capture* const capture = this->capture()) return capture->check(*this);
  for (const CudaDevice* device : {static_cast<const CudaDevice*>(&cuda_), other}) {
    if (device == nullptr) continue;
    auto seen =
        std::find_if(homes_seen_.begin(), homes_seen_.end(), [&](const auto& entry) { return entry.first == device; });
    if (seen == homes_seen_.end()) seen = homes_seen_.insert(seen, {device, 0});
    // Only the epoch of the other device is read; its event is recorded in its own context.
    BERTH_TRY(const_cast<CudaDevice*>(device)->order_after_home(cuda_, stream_, seen->second));
  }
  return {};
}

Result<void> CudaQueue::prepare(const Window& a, const Window& b) {
  for (const Window* window : {&a, &b}) {
    const CudaDevice* other = cuda_device_of(*window);
    if (other != nullptr && other != &cuda_) return prepare(other);
  }
  return prepare();
}

Result<void> CudaQueue::note_capture(const Window& window) {
  Capture* const capture = this->capture();
  if (capture == nullptr) return {};
  if (const CudaDevice* device = cuda_device_of(window); device != nullptr && device != &cuda_)
    return Error(Code::kUnsupported, Layer::kQueue,
                 "a graph of CUDA:{} cannot use {} bytes of CUDA:{}; copy them outside of the capture", cuda_.ordinal(),
                 window.bytes, device->ordinal());
  capture->use(window);
  return {};
}

Result<void> CudaQueue::order_before(CudaQueue& later) {
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY_ASSIGN(const EventPtr event, cuda_.events().take());
  const Driver& driver = cuda_.driver();
  if (const Status status = driver.cuEventRecord(event.get(), stream_); status != kSuccess)
    return fail(status, "cuEventRecord");
  if (const Status status = driver.cuStreamWaitEvent(later.stream_, event.get(), 0); status != kSuccess)
    return fail(status, "cuStreamWaitEvent");
  return {};
}

Result<void> CudaQueue::check_here(const Window& window) const {
  const CudaDevice* device = cuda_device_of(window);
  if (device == nullptr || device == &cuda_) return {};
  return Error(Code::kUnsupported, Layer::kQueue,
               "{} bytes of CUDA:{} on a queue of CUDA:{}, which can only copy them; use a queue of that device",
               window.bytes, device->ordinal(), cuda_.ordinal());
}

void CudaQueue::wait_for_unsubmitted(const CudaDevice& device) noexcept {
  timelines().for_each([&](CudaQueue* queue) {
    if (&queue->cuda() != &device || !queue->issued_.load(std::memory_order_acquire)) return;
    const ContextScope scope(device, 2);
    if (device.is_capturing()) {
      const UnsafeCalls unsafe(device.driver());
      queue->cuda_.record(queue->settle_issued(), "cuStreamSynchronize");
    } else {
      queue->cuda_.settle(queue->stream_);
    }
  });
}

Status CudaQueue::settle_issued() noexcept {
  if (capture() == nullptr) return cuda_.driver().cuStreamSynchronize(stream_);
  EventPtr last;
  {
    const MutexLock lock(flight_mutex_);
    if (!flights_.empty()) last = flights_.back().event;
  }
  return last == nullptr ? kSuccess : cuda_.driver().cuEventSynchronize(last.get());
}

Error CudaQueue::fail_midway(Error error) noexcept {
  if (Capture* const capture = this->capture())
    capture->spoil(error);
  else
    cuda_.settle(stream_);
  return error;
}

// Room for up to `bytes` in a piece that no stream reads any more; `room` is set to what there is.
Result<std::byte*> CudaQueue::write_space(std::size_t bytes, std::size_t* room) {
  const std::uint64_t reached = reached_.load(std::memory_order_acquire);
  if (!write_pieces_.empty()) {
    WritePiece& piece = write_pieces_[write_at_];
    if (reached >= piece.value) piece.empty();
    if (piece.used < kPieceBytes) {
      *room = std::min(bytes, kPieceBytes - piece.used);
      return piece.memory + piece.used;
    }
  }
  if (write_pieces_.size() < kWritePieces) {
    write_pieces_.reserve(kWritePieces);
    BERTH_TRY_ASSIGN(std::byte * memory, cuda_.pinned().take());
    write_pieces_.push_back({memory, 0, 0, nullptr});
    write_at_ = write_pieces_.size() - 1;
  } else {
    const std::size_t next = (write_at_ + 1) % write_pieces_.size();
    WritePiece& piece = write_pieces_[next];
    if (piece.used > 0 && reached < piece.value) BERTH_TRY(wait_for_piece(piece));
    piece.empty();
    write_at_ = next;
  }
  *room = std::min(bytes, kPieceBytes);
  return write_pieces_[write_at_].memory;
}

// Long writes record an event per piece. Short ones do not, since they are usually submitted by the time the piece is
// reused; otherwise everything is waited for, and every piece is free.
Result<void> CudaQueue::wait_for_piece(const WritePiece& piece) {
  BERTH_TRY(check_no_capture("a write that waits for an earlier one"));
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  EventPtr event = piece.left;
  if (event == nullptr) {
    const MutexLock lock(flight_mutex_);
    if (const Flight* const flight = find_flight(piece.value)) event = flight->event;
  }
  const Status status =
      event != nullptr ? cuda_.driver().cuEventSynchronize(event.get()) : cuda_.driver().cuStreamSynchronize(stream_);
  if (status != kSuccess) return fail(status, event != nullptr ? "cuEventSynchronize" : "cuStreamSynchronize");
  if (event == nullptr)
    for (WritePiece& each : write_pieces_) each.empty();
  return {};
}

Result<void> CudaQueue::do_write(const Window& target, std::span<const std::byte> source) {
  BERTH_TRY(check_here(target));
  ContextScope scope(cuda_, ContextScope::Trust::kMemory);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY(prepare());
  if (Capture* const capture = this->capture()) {
    // The pieces below are used again; every launch of the graph writes the bytes of now.
    BERTH_TRY(note_capture(target));
    BERTH_TRY_ASSIGN(const std::byte* const bytes, capture->use(source));
    const Status status = cuda_.driver().cuMemcpyHtoDAsync(address_of(target), bytes, source.size(), stream_);
    if (status != kSuccess) return fail(status, "cuMemcpyHtoDAsync");
    return {};
  }
  std::size_t done = 0;
  while (done < source.size()) {
    std::size_t room = 0;
    auto space = write_space(source.size() - done, &room);
    if (!space) return done == 0 ? space.error() : fail_midway(space.error());
    copy_host(*space, source.data() + done, room);
    const Status status =
        scope.call([&] { return cuda_.driver().cuMemcpyHtoDAsync(address_of(target) + done, *space, room, stream_); });
    if (status != kSuccess) {
      const Error error = fail(status, "cuMemcpyHtoDAsync");
      return done == 0 ? error : fail_midway(error);
    }
    WritePiece& piece = write_pieces_[write_at_];
    piece.used =
        std::min(kPieceBytes, piece.used + (room + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment);
    piece.value = next().value();
    done += room;
    if (done == source.size()) break;
    auto left = cuda_.events().take();
    if (!left) return fail_midway(left.error());
    if (const Status recorded = cuda_.driver().cuEventRecord(left->get(), stream_); recorded != kSuccess)
      return fail_midway(fail(recorded, "cuEventRecord"));
    piece.left = *std::move(left);
  }
  return {};
}

// A target for incoming bytes, or none if enough reads are in flight already.
std::optional<std::pair<std::size_t, std::byte*>> CudaQueue::read_space(std::size_t bytes) {
  for (std::size_t i = 0; i < read_pieces_.size(); ++i) {
    ReadPiece& piece = read_pieces_[i];
    if (piece.arrivals == 0) piece.used = 0;
    if (kPieceBytes - piece.used >= bytes) return std::pair(i, piece.memory + piece.used);
  }
  if (read_pieces_.size() == kReadPieces) return std::nullopt;
  read_pieces_.reserve(kReadPieces);
  auto memory = cuda_.pinned().take();
  if (!memory) return std::nullopt;
  read_pieces_.push_back({*memory, 0, 0});
  return std::pair(read_pieces_.size() - 1, *memory);
}

Result<void> CudaQueue::do_read(const Window& source, std::span<std::byte> target) {
  BERTH_TRY(check_here(source));
  if (capture() != nullptr)
    return Error(Code::kInvalidUsage, Layer::kQueue,
                 "a read of {} bytes cannot be part of a graph: read the buffer after a launch", source.bytes);
  BERTH_TRY(check_no_capture("a read"));
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY(prepare());
  const Driver& driver = cuda_.driver();
  if (target.size() <= kPieceBytes) {
    const MutexLock lock(flight_mutex_);
    if (const auto space = read_space(target.size())) {
      const auto [index, memory] = *space;
      const Status status = driver.cuMemcpyDtoHAsync(memory, address_of(source), target.size(), stream_);
      if (status != kSuccess) return fail(status, "cuMemcpyDtoHAsync");
      ReadPiece& piece = read_pieces_[index];
      const std::size_t taken = (target.size() + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
      piece.used = std::min(kPieceBytes, piece.used + taken);
      ++piece.arrivals;
      arrivals_.push_back({next().value(), index, memory, target.data(), target.size()});
      return {};
    }
  }
  // Long reads into pageable memory are pipelined by the driver, which returns when they are done.
  const Status status = driver.cuMemcpyDtoHAsync(target.data(), address_of(source), target.size(), stream_);
  if (status != kSuccess) return fail(status, "cuMemcpyDtoHAsync");
  return {};
}

Result<void> CudaQueue::do_copy(const Window& source, const Window& target) {
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY(prepare(source, target));
  BERTH_TRY(note_capture(source));
  BERTH_TRY(note_capture(target));
  const Driver& driver = cuda_.driver();
  const Address from = address_of(source);
  const Address to = address_of(target);
  const CudaDevice* const here = cuda_device_of(target);
  const CudaDevice* const there = cuda_device_of(source);
  if ((here != nullptr && here != &cuda_) || (there != nullptr && there != &cuda_)) {
    const Context to_context = here != nullptr ? here->context() : cuda_.context();
    const Context from_context = there != nullptr ? there->context() : cuda_.context();
    const Status status = driver.cuMemcpyPeerAsync(to, to_context, from, from_context, source.bytes, stream_);
    if (status != kSuccess) return fail(status, "cuMemcpyPeerAsync");
    return {};
  }
  if (from == to) return {};
  if (from < to + source.bytes && to < from + source.bytes) return copy_overlapping(to, from, source.bytes);
  if (const Status status = driver.cuMemcpyDtoDAsync(to, from, source.bytes, stream_); status != kSuccess)
    return fail(status, "cuMemcpyDtoDAsync");
  return {};
}

// The driver's copies must not overlap; such a copy goes through scratch memory of the same size, allocated and freed
// in stream order.
Result<void> CudaQueue::copy_overlapping(Address target, Address source, std::size_t bytes) {
  if (capture() != nullptr) return overlaps_in_graph(bytes);
  const Driver& driver = cuda_.driver();
  Address scratch = 0;
  const bool pooled = cuda_.pool() != nullptr;
  const Status taken = pooled ? driver.cuMemAllocFromPoolAsync(&scratch, bytes, cuda_.pool(), stream_)
                              : driver.cuMemAlloc(&scratch, bytes);
  if (taken != kSuccess) return fail(taken, pooled ? "cuMemAllocFromPoolAsync" : "cuMemAlloc");
  Status status = driver.cuMemcpyDtoDAsync(scratch, source, bytes, stream_);
  if (status == kSuccess) status = driver.cuMemcpyDtoDAsync(target, scratch, bytes, stream_);
  std::optional<Error> error;
  if (status != kSuccess) error = fail_midway(fail(status, "cuMemcpyDtoDAsync"));
  if (pooled) {
    cuda_.record(driver.cuMemFreeAsync(scratch, stream_), "cuMemFreeAsync");
  } else {
    cuda_.settle(stream_);
    cuda_.record(driver.cuMemFree(scratch), "cuMemFree");
  }
  if (error) return *error;
  return {};
}

Result<void> CudaQueue::do_fill(const Window& target, std::uint8_t value) {
  BERTH_TRY(check_here(target));
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY(prepare());
  BERTH_TRY(note_capture(target));
  const Status status = cuda_.driver().cuMemsetD8Async(address_of(target), value, target.bytes, stream_);
  if (status != kSuccess) return fail(status, "cuMemsetD8Async");
  return {};
}

Result<void> CudaQueue::do_copy_rows(const Window& source, std::size_t source_pitch, const Window& target,
                                     std::size_t target_pitch, std::size_t row_bytes, std::size_t rows) {
  const auto elsewhere = [&](const Window& window) {
    const CudaDevice* device = cuda_device_of(window);
    return device != nullptr && device != &cuda_;
  };
  const bool overlapping =
      address_of(source) < address_of(target) + target.bytes && address_of(target) < address_of(source) + source.bytes;
  if (overlapping && capture() != nullptr) return overlaps_in_graph(source.bytes);
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  if (overlapping || elsewhere(source) || elsewhere(target) || source_pitch > kMaxPitch || target_pitch > kMaxPitch) {
    auto copied = Queue::do_copy_rows(source, source_pitch, target, target_pitch, row_bytes, rows);
    if (!copied) return fail_midway(copied.error());
    return copied;
  }
  BERTH_TRY(prepare());
  BERTH_TRY(note_capture(source));
  BERTH_TRY(note_capture(target));
  Copy2d copy{};
  copy.source_type = kMemoryDevice;
  copy.source_device = address_of(source);
  copy.source_pitch = source_pitch;
  copy.target_type = kMemoryDevice;
  copy.target_device = address_of(target);
  copy.target_pitch = target_pitch;
  copy.width_bytes = row_bytes;
  copy.height = rows;
  if (const Status status = cuda_.driver().cuMemcpy2DAsync(&copy, stream_); status != kSuccess)
    return fail(status, "cuMemcpy2DAsync");
  return {};
}

Result<void> CudaQueue::do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                                  std::span<const std::byte> constants) {
  const auto* body = dynamic_cast<const CudaKernelBody*>(kernel.get());
  if (body == nullptr || &body->device() != &cuda_)
    return Error(Code::kInvalidArgument, Layer::kQueue, "the kernel was made by another device");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const CudaDevice* device = cuda_device_of(arguments[i].window);
    if (arguments[i].window.device != nullptr && device != &cuda_)
      return Error(Code::kInvalidArgument, Layer::kQueue, "argument {} is on another device; copy it first", i);
  }
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY(prepare());
  for (const KernelArgument& argument : arguments) BERTH_TRY(note_capture(argument.window));
  if (Capture* const capture = this->capture()) {
    capture->use(kernel);
    return body->launch(stream_, arguments, grid, constants);
  }
  {
    const MutexLock lock(flight_mutex_);
    kernels_.emplace_back(next().value(), kernel);
  }
  auto launched = body->launch(stream_, arguments, grid, constants);
  if (!launched) {
    const MutexLock lock(flight_mutex_);
    kernels_.pop_back();
  }
  return launched;
}

Result<void> CudaQueue::do_record_native(std::span<const Window> uses,
                                         const std::function<Result<void>(void* native)>& record) {
  for (const Window& window : uses) BERTH_TRY(check_here(window));
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  BERTH_TRY(prepare());
  for (const Window& window : uses) BERTH_TRY(note_capture(window));
  auto recorded = record(stream_);
  if (!recorded) return fail_midway(recorded.error());
  return recorded;
}

const CudaQueue::Flight* CudaQueue::find_flight(std::uint64_t value) const {
  for (const Flight& flight : flights_)
    if (flight.value >= value) return &flight;
  return nullptr;
}

Result<EventPtr> CudaQueue::event_after(std::uint64_t value) {
  if (capture() != nullptr) {
    const MutexLock lock(flight_mutex_);
    if (const Flight* const flight = find_flight(value)) return flight->event;
    return Error(Code::kInvalidUsage, Layer::kQueue,
                 "a queue that captures a graph cannot be waited for: end the capture first");
  }
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  const MutexLock lock(flight_mutex_);
  if (const Flight* const flight = find_flight(value)) return flight->event;
  // Recorded and not submitted yet, but already issued.
  BERTH_TRY_ASSIGN(EventPtr event, cuda_.events().take());
  if (const Status status = cuda_.driver().cuEventRecord(event.get(), stream_); status != kSuccess)
    return fail(status, "cuEventRecord");
  return event;
}

Result<void> CudaQueue::do_wait_for(Timepoint moment) {
  BERTH_TRY(check_whole());
  if (capture() != nullptr)
    return Error(Code::kInvalidUsage, Layer::kQueue,
                 "a graph cannot wait for work outside of its capture: wait before the capture begins or the graph is "
                 "launched, and use fork() and join() inside");
  const ContextScope scope(cuda_);
  BERTH_TRY(scope.check(Layer::kQueue));
  Result<void> outcome;
  const bool found = with_timeline(moment.timeline(), [&](CudaQueue& other) {
    auto event = other.event_after(moment.value());
    if (!event) {
      outcome = event.error();
      return;
    }
    if (const Status status = cuda_.driver().cuStreamWaitEvent(stream_, event->get(), 0); status != kSuccess)
      outcome = fail(status, "cuStreamWaitEvent");
  });
  // A queue of another backend, or one that was destroyed meanwhile: the host waits.
  return found ? outcome : Queue::do_wait_for(moment);
}

Result<void> CudaQueue::do_submit(std::uint64_t value) {
  BERTH_TRY(check_whole());
  if (capture() != nullptr)
    return Error(Code::kInvalidUsage, Layer::kQueue,
                 "a queue that captures a graph cannot be submitted: end the capture, then launch the graph");
  const Driver& driver = cuda_.driver();
  const ContextScope scope(cuda_, 2);
  if (auto current = scope.check(Layer::kQueue); !current) return break_off(current.error());
  auto event = cuda_.events().take();
  const Status status = event ? driver.cuEventRecord(event->get(), stream_) : kErrorOutOfMemory;
  issued_.store(false, std::memory_order_release);
  if (status == kSuccess) {
    const MutexLock lock(flight_mutex_);
    flights_.push_back({value, *std::move(event)});
    return {};
  }
  // Without an event the host waits now, which is slower and also correct.
  if (cuda_.settle(stream_)) {
    complete(value);
    return {};
  }
  return break_off(event ? fail(status, "cuEventRecord") : event.error());
}

// Everything up to `value` is done: copies incoming bytes to their targets, and releases kernels and events.
void CudaQueue::complete(std::uint64_t value) {
  std::deque<std::pair<std::uint64_t, Kernel>> over;  // dropped outside the lock: unloading calls the driver
  const MutexLock lock(flight_mutex_);
  while (!flights_.empty() && flights_.front().value <= value) flights_.pop_front();
  while (!arrivals_.empty() && arrivals_.front().value <= value) {
    const Arrival& arrival = arrivals_.front();
    std::memcpy(arrival.to, arrival.from, arrival.bytes);
    --read_pieces_[arrival.piece].arrivals;
    arrivals_.pop_front();
  }
  while (!kernels_.empty() && kernels_.front().first <= value) {
    over.push_back(std::move(kernels_.front()));
    kernels_.pop_front();
  }
  if (reached_.load(std::memory_order_relaxed) < value) reached_.store(value, std::memory_order_release);
}

Result<void> CudaQueue::check_whole() {
  if (!broken_.load(std::memory_order_acquire)) return {};
  const MutexLock lock(flight_mutex_);
  return *broken_by_;
}

Error CudaQueue::break_off(Error error) {
  // The caller may free the targets of its reads now, and a later timepoint must not suggest that they were filled.
  forget_arrivals();
  const MutexLock lock(flight_mutex_);
  if (!broken_by_) broken_by_ = error;
  broken_.store(true, std::memory_order_release);
  return error;
}

void CudaQueue::forget_arrivals() noexcept {
  const MutexLock lock(flight_mutex_);
  for (const Arrival& arrival : arrivals_) --read_pieces_[arrival.piece].arrivals;
  arrivals_.clear();
}

Result<void> CudaQueue::do_wait(std::uint64_t value) {
  if (reached_.load(std::memory_order_acquire) >= value) return {};
  BERTH_TRY(check_no_capture("waiting for a queue"));
  const Driver& driver = cuda_.driver();
  const ContextScope scope(cuda_, 2);
  if (auto current = scope.check(Layer::kQueue); !current) return break_off(current.error());
  EventPtr event;
  std::uint64_t reached = value;
  {
    const MutexLock lock(flight_mutex_);
    if (const Flight* const flight = find_flight(value)) {
      event = flight->event;
      reached = flight->value;
    }
  }
  if (event == nullptr) return {};
  const Status status = driver.cuEventSynchronize(event.get());
  // An event that does not answer is no reason to give up the stream.
  if (status != kSuccess && !cuda_.settle(stream_)) return break_off(fail(status, "cuEventSynchronize"));
  complete(reached);
  return {};
}

std::uint64_t CudaQueue::poll() noexcept {
  std::uint64_t done = 0;
  // Whoever asks gets the answer of last time while a capture forbids to ask the driver.
  if (capture_forbids()) return reached_.load(std::memory_order_acquire);
  try {
    const Driver& driver = cuda_.driver();
    {
      const MutexLock lock(flight_mutex_);
      if (flights_.empty()) return reached_.load(std::memory_order_acquire);
    }
    const ContextScope scope(cuda_);
    if (scope.status() == kSuccess) {
      const MutexLock lock(flight_mutex_);
      // A lost device answers with an error, which is not completion: wait() reports it.
      for (const Flight& flight : flights_) {
        if (driver.cuEventQuery(flight.event.get()) != kSuccess) break;
        done = flight.value;
      }
    }
    if (done != 0) complete(done);
  } catch (...) {
    // Nothing is known: ask again later.
  }
  return reached_.load(std::memory_order_acquire);
}

}  // namespace berth::internal::cuda
