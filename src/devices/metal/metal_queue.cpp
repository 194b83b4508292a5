#include "devices/metal/metal_queue.h"

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "devices/metal/metal_kernel.h"
#include "devices/metal/metal_shaders.h"
#include "memory/host_copy.h"

namespace berth::internal::metal {
namespace {

// The amount of staging that one recording may fill before it is run and waited for.
constexpr std::size_t kMostPieces = 8;
// Small transfers start at a cache line, so that two of them never share one.
constexpr std::size_t kStagingAlignment = 64;
constexpr std::size_t kWord = 4;

// Runs one of the kernels over bytes; the encoder has its arguments.
void dispatch_over(MTL::ComputeCommandEncoder& encoder, std::size_t bytes) {
  constexpr std::size_t kBytesAGroup = kBytesAThread * kThreadsAGroup;
  encoder.dispatchThreadgroups(MTL::Size::Make(round_up(bytes, kBytesAGroup) / kBytesAGroup, 1, 1),
                               MTL::Size::Make(kThreadsAGroup, 1, 1));
}

}  // namespace

TimelineMap<std::shared_ptr<MetalQueue::Progress>>& MetalQueue::timelines() {
  static auto* const map = new TimelineMap<std::shared_ptr<Progress>>;
  return *map;
}

// --- Outcomes and progress ---

bool MetalQueue::Outcome::is_over() {
  const MutexLock lock(mutex_);
  if (over_) return true;
  for (const auto& wait : waits_)
    if (!wait->is_over()) return false;
  const auto status = commands_ ? commands_->status() : MTL::CommandBufferStatusCompleted;
  if (status < MTL::CommandBufferStatusCompleted) return false;
  over_ = true;
  if (status == MTL::CommandBufferStatusError) error_ = execution_error(*commands_);
  for (const auto& wait : waits_)
    if (!error_) error_ = wait->error();
  waits_.clear();
  commands_ = {};
  return true;
}

void MetalQueue::Outcome::wait() {
  std::vector<std::shared_ptr<Outcome>> waits;
  Owned<MTL::CommandBuffer> commands;
  {
    const MutexLock lock(mutex_);
    waits = waits_;
    commands = commands_;
  }
  for (const auto& before : waits) before->wait();
  if (commands) commands->waitUntilCompleted();
}

void MetalQueue::Outcome::add_dependent(std::weak_ptr<Progress> queue) {
  const MutexLock lock(mutex_);
  dependents_.push_back(std::move(queue));
}

std::vector<std::weak_ptr<MetalQueue::Progress>> MetalQueue::Outcome::take_dependents() {
  const MutexLock lock(mutex_);
  return std::exchange(dependents_, {});
}

bool MetalQueue::Progress::idle() {
  const MutexLock lock(mutex);
  return flights.empty();
}

std::optional<Error> MetalQueue::Progress::broken_by() {
  const MutexLock lock(mutex);
  return error;
}

void MetalQueue::Progress::break_off(const Error& why) {
  if (!error) error = why;
  // A queue that waits for this one on a GPU must not hang: waiting on the host returns the error.
  const std::uint64_t last = submitted.load(std::memory_order_acquire);
  if (event->signaledValue() < last) event->setSignaledValue(last);
}

void MetalQueue::Progress::settle() {
  std::vector<std::weak_ptr<Progress>> waiting;
  {
    const MutexLock lock(mutex);
    settle_locked();
    waiting = std::exchange(dependents, {});
  }
  for (const auto& queue : waiting)
    if (const auto alive = queue.lock()) alive->settle();
}

void MetalQueue::Progress::settle_locked() {
  while (!flights.empty() && flights.front().outcome->is_over()) {
    Flight& flight = flights.front();
    if (flight.outcome->error()) break_off(*flight.outcome->error());
    deliver(staging, flight.held, !error);
    if (!error) reached.store(flight.value, std::memory_order_release);
    for (auto& queue : flight.outcome->take_dependents()) dependents.push_back(std::move(queue));
    flights.pop_front();
  }
}

void MetalQueue::deliver(StagingPool& pool, Held& held, bool arrived) noexcept {
  if (arrived)
    for (const Arrival& arrival : held.arrivals) std::memcpy(arrival.to, arrival.from, arrival.bytes);
  for (const StagingPiece& piece : held.pieces) pool.give(piece);
  held = {};
}

// --- The queue ---

MetalQueue::MetalQueue(MetalDevice& device, Owned<MTL::CommandQueue> queue, Owned<MTL::SharedEvent> event)
    : Queue(device), metal_(device), queue_(std::move(queue)), progress_(std::make_shared<Progress>(device.staging())) {
  progress_->event = std::move(event);
  // A new queue continues the values of its timeline.
  progress_->reached.store(next().value() - 1, std::memory_order_relaxed);
  progress_->submitted.store(next().value() - 1, std::memory_order_relaxed);
  timelines().put(timeline(), progress_);
}

Result<std::unique_ptr<Queue>> MetalQueue::make(MetalDevice& device) {
  auto queue = taken(device.native_device().newCommandQueue());
  if (!queue) return driver_error(nullptr, "newCommandQueue");
  auto event = taken(device.native_device().newSharedEvent());
  if (!event) return driver_error(nullptr, "newSharedEvent");
  if (const MTL::ResidencySet* set = device.residency_set()) queue->addResidencySet(set);
  return std::unique_ptr<Queue>(new MetalQueue(device, std::move(queue), std::move(event)));
}

MetalQueue::~MetalQueue() {
  close();
  timelines().remove(timeline(), progress_);
  // Work that was recorded but never submitted does not run.
  end_encoding();
  commands_ = {};
  deliver(metal_.staging(), held_, false);
  const MutexLock lock(progress_->mutex);
  for (Flight& flight : progress_->flights) deliver(metal_.staging(), flight.held, false);
  progress_->flights.clear();
}

Result<void> MetalQueue::check_whole() {
  if (auto error = progress_->broken_by()) return *error;
  return {};
}

Result<MTL::CommandBuffer*> MetalQueue::commands() {
  if (!commands_) {
    BERTH_TRY(check_whole());
    const AutoreleaseScope scope;
    commands_ = kept(queue_->commandBuffer());
    if (!commands_) return driver_error(nullptr, "commandBuffer", Code::kDriver, Layer::kQueue);
  }
  return commands_.get();
}

void MetalQueue::end_encoding() noexcept {
  if (blit_) blit_->endEncoding();
  if (compute_) compute_->endEncoding();
  blit_ = {};
  compute_ = {};
  pipeline_ = nullptr;
}

Result<MTL::BlitCommandEncoder*> MetalQueue::blit() {
  if (!blit_) {
    BERTH_TRY_ASSIGN(MTL::CommandBuffer* const into, commands());
    end_encoding();
    const AutoreleaseScope scope;
    blit_ = kept(into->blitCommandEncoder());
    if (!blit_) return driver_error(nullptr, "blitCommandEncoder", Code::kDriver, Layer::kQueue);
  }
  return blit_.get();
}

Result<MTL::ComputeCommandEncoder*> MetalQueue::compute(const MTL::ComputePipelineState& pipeline) {
  if (!compute_) {
    BERTH_TRY_ASSIGN(MTL::CommandBuffer* const into, commands());
    end_encoding();
    const AutoreleaseScope scope;
    compute_ = kept(into->computeCommandEncoder());
    if (!compute_) return driver_error(nullptr, "computeCommandEncoder", Code::kDriver, Layer::kQueue);
  }
  if (pipeline_ != &pipeline) {
    compute_->setComputePipelineState(&pipeline);
    pipeline_ = &pipeline;
  }
  return compute_.get();
}

bool MetalQueue::can_move_now(const Window& window) {
  return !commands_ && window.block.has(BlockFlags::kHostTransfer) && progress_->idle();
}

Result<StagingPiece*> MetalQueue::staging(std::size_t bytes, std::size_t* room) {
  if (!held_.pieces.empty() && held_.pieces.back().used + kStagingAlignment > StagingPool::kPieceBytes &&
      held_.pieces.size() >= kMostPieces)
    BERTH_TRY(flush());
  if (held_.pieces.empty() || held_.pieces.back().used + kStagingAlignment > StagingPool::kPieceBytes) {
    held_.pieces.reserve(held_.pieces.size() + 1);
    BERTH_TRY_ASSIGN(const StagingPiece fresh, metal_.staging().take());
    held_.pieces.push_back(fresh);
  }
  StagingPiece& piece = held_.pieces.back();
  // Room for the words around the bytes, which start at most one word in.
  *room = std::min(bytes, StagingPool::kPieceBytes - piece.used - 2 * kWord);
  return &piece;
}

Result<void> MetalQueue::flush() {
  if (!commands_) return {};
  end_encoding();
  // Staging and new blocks must be resident before the work is committed, as in submit().
  if (Residency* set = metal_.residency()) BERTH_TRY(set->commit());
  auto commands = std::exchange(commands_, {});
  commands->commit();
  Outcome outcome(std::move(commands), std::move(held_.waits));
  outcome.wait();
  static_cast<void>(outcome.is_over());
  const std::optional<Error>& error = outcome.error();
  deliver(metal_.staging(), held_, !error);
  if (!error) return {};
  const MutexLock lock(progress_->mutex);
  progress_->break_off(*error);
  return *error;
}

// --- Bytes ---

Result<void> MetalQueue::copy_odd_bytes(const MTL::Buffer& from, std::size_t from_at, const MTL::Buffer& to,
                                        std::size_t to_at, std::size_t bytes) {
  if (bytes == 0) return {};
  BERTH_TRY_ASSIGN(const ByteKernels kernels, metal_.byte_kernels());
  BERTH_TRY_ASSIGN(MTL::ComputeCommandEncoder* const encoder, compute(*kernels.copy));
  const CopyConstants constants{from_at, to_at, bytes};
  encoder->setBuffer(&from, 0, 0);
  encoder->setBuffer(&to, 0, 1);
  encoder->setBytes(&constants, sizeof constants, 2);
  dispatch_over(*encoder, bytes);
  return {};
}

Result<void> MetalQueue::fill_odd_bytes(const MTL::Buffer& target, std::size_t at, std::size_t bytes,
                                        std::uint8_t value) {
  if (bytes == 0) return {};
  BERTH_TRY_ASSIGN(const ByteKernels kernels, metal_.byte_kernels());
  BERTH_TRY_ASSIGN(MTL::ComputeCommandEncoder* const encoder, compute(*kernels.fill));
  const FillConstants constants{at, bytes, value, 0};
  encoder->setBuffer(&target, 0, 0);
  encoder->setBytes(&constants, sizeof constants, 1);
  dispatch_over(*encoder, bytes);
  return {};
}

// Requires: the ranges do not overlap.
Result<void> MetalQueue::copy_bytes(const MTL::Buffer& from, std::size_t from_at, const MTL::Buffer& to,
                                    std::size_t to_at, std::size_t bytes) {
  if (from_at % kWord != to_at % kWord) return copy_odd_bytes(from, from_at, to, to_at, bytes);
  const std::size_t head = std::min(bytes, round_up(from_at, kWord) - from_at);
  const std::size_t words = (bytes - head) / kWord * kWord;
  if (words > 0) {
    BERTH_TRY_ASSIGN(MTL::BlitCommandEncoder* const encoder, blit());
    encoder->copyFromBuffer(&from, from_at + head, &to, to_at + head, words);
  }
  BERTH_TRY(copy_odd_bytes(from, from_at, to, to_at, head));
  const std::size_t done = head + words;
  return copy_odd_bytes(from, from_at + done, to, to_at + done, bytes - done);
}

Result<void> MetalQueue::all_or_over(const std::function<Result<void>()>& record) {
  const std::size_t arrivals = held_.arrivals.size();
  auto recorded = record();
  if (recorded) return recorded;
  // The caller frees the target of a read, and the base will not store its last use: what was encoded is run to its
  // end.
  held_.arrivals.resize(std::min(arrivals, held_.arrivals.size()));
  static_cast<void>(flush());
  return recorded;
}

Result<void> MetalQueue::do_write(const Window& target, std::span<const std::byte> source) {
  BERTH_TRY(check_whole());
  if (can_move_now(target)) {
    copy_host(target.block.host + target.offset, source.data(), source.size());
    return {};
  }
  return all_or_over([&] { return write_staged(target, source); });
}

Result<void> MetalQueue::write_staged(const Window& target, std::span<const std::byte> source) {
  std::size_t done = 0;
  while (done < source.size()) {
    std::size_t room = 0;
    BERTH_TRY_ASSIGN(StagingPiece* const piece, staging(source.size() - done, &room));
    // The same offset within a word as in the target, so that a blit can copy most of it.
    const std::size_t at = piece->used + (target.offset + done) % kWord;
    copy_host(piece->host + at, source.data() + done, room);
    piece->used = round_up(at + room, kStagingAlignment);
    BERTH_TRY(copy_bytes(*piece->buffer, at, *buffer_of(target.block), target.offset + done, room));
    done += room;
  }
  return {};
}

Result<void> MetalQueue::do_read(const Window& source, std::span<std::byte> target) {
  BERTH_TRY(check_whole());
  if (can_move_now(source)) {
    copy_host(target.data(), source.block.host + source.offset, target.size());
    return {};
  }
  return all_or_over([&] { return read_staged(source, target); });
}

Result<void> MetalQueue::read_staged(const Window& source, std::span<std::byte> target) {
  const MTL::Buffer& buffer = *buffer_of(source.block);
  const std::size_t length = buffer.length();
  std::size_t done = 0;
  while (done < target.size()) {
    std::size_t room = 0;
    BERTH_TRY_ASSIGN(StagingPiece* const piece, staging(target.size() - done, &room));
    // Whole words around the bytes, if the buffer has them: reading more than requested is harmless.
    const std::size_t first = source.offset + done;
    const std::size_t begin = first / kWord * kWord;
    const std::size_t end = round_up(first + room, kWord);
    const std::size_t at = piece->used + (first - begin);
    if (end <= length)
      BERTH_TRY(copy_bytes(buffer, begin, *piece->buffer, piece->used, end - begin));
    else
      BERTH_TRY(copy_bytes(buffer, first, *piece->buffer, at, room));
    held_.arrivals.push_back({piece->host + at, target.data() + done, room});
    piece->used = round_up(at + room, kStagingAlignment);
    done += room;
  }
  return {};
}

Result<void> MetalQueue::do_copy(const Window& source, const Window& target) {
  BERTH_TRY(check_whole());
  return all_or_over([&] { return copy_window(source, target); });
}

Result<void> MetalQueue::copy_window(const Window& source, const Window& target) {
  const MTL::Buffer& from = *buffer_of(source.block);
  const MTL::Buffer& to = *buffer_of(target.block);
  const std::size_t bytes = source.bytes;
  const bool overlapping =
      &from == &to && source.offset < target.offset + bytes && target.offset < source.offset + bytes;
  if (!overlapping) return copy_bytes(from, source.offset, to, target.offset, bytes);
  if (source.offset == target.offset) return {};
  // Blits must not overlap, so the copy goes through scratch memory.
  held_.pieces.reserve(held_.pieces.size() + 1);
  const std::size_t phase = source.offset % kWord;
  BERTH_TRY_ASSIGN(StagingPiece scratch, metal_.staging().take(round_up(bytes + phase, kWord)));
  scratch.used = scratch.bytes;
  // At the front, because transfers fill the last piece.
  held_.pieces.insert(held_.pieces.begin(), scratch);
  BERTH_TRY(copy_bytes(from, source.offset, *scratch.buffer, phase, bytes));
  return copy_bytes(*scratch.buffer, phase, to, target.offset, bytes);
}

Result<void> MetalQueue::do_copy_rows(const Window& source, std::size_t source_pitch, const Window& target,
                                      std::size_t target_pitch, std::size_t row_bytes, std::size_t rows) {
  BERTH_TRY(check_whole());
  return all_or_over([&] { return Queue::do_copy_rows(source, source_pitch, target, target_pitch, row_bytes, rows); });
}

Result<void> MetalQueue::do_fill(const Window& target, std::uint8_t value) {
  BERTH_TRY(check_whole());
  return all_or_over([&] { return fill_window(target, value); });
}

Result<void> MetalQueue::fill_window(const Window& target, std::uint8_t value) {
  const MTL::Buffer& buffer = *buffer_of(target.block);
  const std::size_t head = std::min(target.bytes, round_up(target.offset, kWord) - target.offset);
  const std::size_t words = (target.bytes - head) / kWord * kWord;
  if (words > 0) {
    BERTH_TRY_ASSIGN(MTL::BlitCommandEncoder* const encoder, blit());
    encoder->fillBuffer(&buffer, NS::Range::Make(target.offset + head, words), value);
  }
  BERTH_TRY(fill_odd_bytes(buffer, target.offset, head, value));
  const std::size_t done = head + words;
  return fill_odd_bytes(buffer, target.offset + done, target.bytes - done, value);
}

// --- Kernels and native work ---

Result<void> MetalQueue::do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                                   std::span<const std::byte> constants) {
  const auto* body = dynamic_cast<const MetalKernelBody*>(kernel.get());
  if (body == nullptr || &body->device() != &metal_)
    return Error(Code::kInvalidArgument, Layer::kQueue, "the kernel was made by another device");
  BERTH_TRY(body->check(arguments, grid, constants));
  BERTH_TRY_ASSIGN(MTL::ComputeCommandEncoder* const encoder, compute(body->pipeline()));
  body->launch(*encoder, arguments, grid, constants);
  return {};
}

Result<void> MetalQueue::do_record_native(std::span<const Window>,
                                          const std::function<Result<void>(void* native)>& record) {
  BERTH_TRY_ASSIGN(MTL::CommandBuffer* const into, commands());
  end_encoding();
  auto recorded = record(into);
  // Work that was encoded before the failure cannot be undone, and the base will not store its last use: it is run to
  // its end.
  if (!recorded) BERTH_TRY(flush());
  return recorded;
}

// --- Timepoints ---

Result<void> MetalQueue::do_wait_for(Timepoint moment) {
  std::shared_ptr<Progress> other;
  timelines().with(moment.timeline(), [&](const std::shared_ptr<Progress>& found) { other = found; });
  // A queue of another backend: the host waits. It also waits for work that has failed or was not submitted, which is
  // an error.
  if (other == nullptr || other->submitted.load(std::memory_order_acquire) < moment.value() || other->broken_by())
    return Queue::do_wait_for(moment);
  std::shared_ptr<Outcome> outcome;
  {
    const MutexLock lock(other->mutex);
    const auto flight = std::find_if(other->flights.begin(), other->flights.end(),
                                     [&](const Flight& one) { return one.value >= moment.value(); });
    if (flight == other->flights.end()) return {};  // reached in between
    outcome = flight->outcome;
    outcome->add_dependent(progress_);
  }
  BERTH_TRY_ASSIGN(MTL::CommandBuffer* const into, commands());
  end_encoding();
  into->encodeWait(other->event.get(), moment.value());
  held_.waits.push_back(std::move(outcome));
  return {};
}

Result<void> MetalQueue::do_submit(std::uint64_t value) {
  BERTH_TRY(check_whole());
  end_encoding();
  auto commands = std::exchange(commands_, {});
  if (commands) {
    commands->encodeSignalEvent(progress_->event.get(), value);
    const AutoreleaseScope scope;
    commands->addCompletedHandler([progress = progress_](MTL::CommandBuffer*) { progress->settle(); });
  }
  {
    const MutexLock lock(progress_->mutex);
    progress_->submitted.store(value, std::memory_order_release);
    Held held = std::exchange(held_, {});
    // Work after failed work of the same queue has failed too.
    if (!progress_->flights.empty()) held.waits.push_back(progress_->flights.back().outcome);
    auto outcome = std::make_shared<Outcome>(commands, std::move(held.waits));
    progress_->flights.push_back({value, std::move(outcome), std::move(held)});
    // The GPU has nothing to do: done already.
    if (!commands) progress_->settle_locked();
  }
  if (commands) commands->commit();
  return {};
}

Result<void> MetalQueue::do_wait(std::uint64_t value) {
  // The oldest first: handlers need not have run in order, or at all, when the GPU is done.
  while (progress_->reached.load(std::memory_order_acquire) < value) {
    std::shared_ptr<Outcome> oldest;
    {
      const MutexLock lock(progress_->mutex);
      if (progress_->flights.empty() || progress_->flights.front().value > value) break;
      oldest = progress_->flights.front().outcome;
    }
    oldest->wait();
    progress_->settle();
  }
  if (progress_->reached.load(std::memory_order_acquire) >= value) return {};
  return check_whole();
}

std::uint64_t MetalQueue::poll() noexcept {
  try {
    progress_->settle();
  } catch (...) {
    // Nothing is known: ask again later.
  }
  return progress_->reached.load(std::memory_order_acquire);
}

}  // namespace berth::internal::metal
