#include "devices/webgpu/webgpu_queue.h"

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "memory/host_copy.h"
#include "memory/timelines.h"

namespace berth::internal::webgpu {
namespace {

constexpr std::size_t kMostGroups = 256;       // bind groups that a queue caches
constexpr std::size_t kConstantsWindow = 256;  // minimum binding size, so that padding of WGSL structs fits
constexpr std::size_t kReadsInFlight = 2;

}  // namespace

Result<std::shared_ptr<const WgslKernel>> Shared::kernel(std::string_view code, std::string_view entry) {
  std::string key(entry);
  key += '\n';
  key += code;
  const MutexLock lock(mutex_);
  if (const auto it = kernels_.find(key); it != kernels_.end()) return it->second;
  BERTH_TRY_ASSIGN(auto compiled, WgslKernel::compile(context, code, entry));
  kernels_.emplace(std::move(key), compiled);
  return compiled;
}

WebgpuQueue::~WebgpuQueue() {
  close();
  abandon();
  for (Batch& batch : flight_) let_go(batch);
  for (const auto& [key, group] : groups_) context_.calls().BindGroupRelease(group);
}

std::size_t WebgpuQueue::GroupHash::operator()(const GroupKey& key) const noexcept {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const std::uint64_t word : key) {
    hash = (hash ^ word) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash;
}

// ---- recording ----------------------------------------------------------------------------------------------

Result<BufferStatePtr> WebgpuQueue::state_of(const Window& window, const char* what) const {
  BufferStatePtr state = shared_.buffers.find(window.block.handle);
  if (state == nullptr)
    return Error::with_text(Code::kInvalidArgument, Layer::kQueue,
                            std::string("the ") + what + " is not memory of this WEBGPU device");
  return state;
}

Result<void> WebgpuQueue::need_encoder() {
  if (encoder_ == nullptr) {
    BERTH_TRY_ASSIGN(encoder_, context_.create_encoder());
  }
  return {};
}

Result<void> WebgpuQueue::need_pass() {
  BERTH_TRY(record_pending_copy());
  BERTH_TRY(need_encoder());
  if (pass_ == nullptr) {
    BERTH_TRY_ASSIGN(pass_, context_.begin_pass(encoder_));
    pass_variant_ = 0;
  }
  return {};
}

void WebgpuQueue::end_pass() noexcept {
  if (pass_ == nullptr) return;
  context_.calls().ComputePassEncoderEnd(pass_);
  context_.calls().ComputePassEncoderRelease(pass_);
  pass_ = nullptr;
}

void WebgpuQueue::use(const BufferStatePtr& state) {
  // A chain of kernels uses the same few buffers repeatedly: one hold per recording would suffice, several do no harm.
  const std::size_t looked_at = std::min<std::size_t>(used_.size(), 8);
  if (std::find(used_.end() - static_cast<std::ptrdiff_t>(looked_at), used_.end(), state) != used_.end()) return;
  used_.push_back(state);
  state->begin_use();
}

Result<void> WebgpuQueue::copy_bytes(wgpu::Buffer from, std::uint64_t from_offset, wgpu::Buffer to,
                                     std::uint64_t to_offset, std::uint64_t bytes) {
  BERTH_TRY(need_encoder());
  end_pass();
  context_.calls().CommandEncoderCopyBufferToBuffer(encoder_, from, from_offset, to, to_offset, bytes);
  return {};
}

Result<void> WebgpuQueue::record_pending_copy() {
  if (pending_copy_.bytes == 0) return {};
  const PendingCopy copy = std::exchange(pending_copy_, {});
  return copy_bytes(upload_.buffer, copy.from, copy.target->buffer, copy.to, copy.bytes);
}

// ---- transfers ------------------------------------------------------------------------------------------------

Result<void> WebgpuQueue::stage(const BufferStatePtr& state, std::size_t offset, std::span<const std::byte> source) {
  while (!source.empty()) {
    if (upload_.buffer != nullptr && uploaded_ == upload_.bytes) BERTH_TRY(flush());
    if (upload_.buffer == nullptr) {
      BERTH_TRY_ASSIGN(upload_, shared_.staging.take(ChunkKind::kUpload));
      uploaded_ = 0;
    }
    const std::size_t count = std::min(source.size(), upload_.bytes - uploaded_);
    use(state);
    std::memcpy(upload_.mapped + uploaded_, source.data(), count);
    // A write that continues where the last one ended extends that copy.
    PendingCopy& last = pending_copy_;
    if (last.bytes > 0 && last.target == state && last.from + last.bytes == uploaded_ &&
        last.to + last.bytes == offset) {
      last.bytes += count;
    } else {
      BERTH_TRY(record_pending_copy());
      pending_copy_ = {state, uploaded_, offset, count};
    }
    uploaded_ += count;
    offset += count;
    source = source.subspan(count);
  }
  return {};
}

Result<void> WebgpuQueue::read_staged(const BufferStatePtr& state, std::size_t offset, std::span<std::byte> target) {
  // Whole words around the window; the bytes that were not requested stay in the chunk.
  while (!target.empty()) {
    if (batch_.chunk.buffer != nullptr && read_back_ == batch_.chunk.bytes) {
      BERTH_TRY(flush());
      BERTH_TRY(room_for_reads());
    }
    if (batch_.chunk.buffer == nullptr) {
      BERTH_TRY_ASSIGN(batch_.chunk, shared_.staging.take(ChunkKind::kReadback));
      read_back_ = 0;
    }
    const std::size_t lead = offset % 4;
    const std::size_t count = std::min(target.size(), batch_.chunk.bytes - read_back_ - lead);
    const std::size_t words = round_up(lead + count, 4);
    BERTH_TRY(record_pending_copy());
    use(state);
    BERTH_TRY(copy_bytes(state->buffer, offset - lead, batch_.chunk.buffer, read_back_, words));
    batch_.reads.push_back({read_back_ + lead, target.data(), count});
    read_back_ += words;
    offset += count;
    target = target.subspan(count);
  }
  return {};
}

// ---- kernels --------------------------------------------------------------------------------------------------

Result<void> WebgpuQueue::room_for_constants(std::size_t bytes) {
  const std::size_t bound = round_up(bytes, kConstantsWindow);
  const std::size_t most = std::min<std::size_t>(kConstantsBytes, context_.limits().max_uniform_buffer_binding_size);
  if (bound > most)
    return Error(Code::kInvalidArgument, Layer::kQueue, "{} bytes of constants, and a launch takes at most {}", bytes,
                 most);
  if (constants_.buffer != nullptr && constants_used_ + bound > constants_.bytes) BERTH_TRY(flush());
  if (constants_.buffer == nullptr) {
    BERTH_TRY_ASSIGN(constants_, shared_.staging.take(ChunkKind::kConstants));
    constants_used_ = 0;
    if (constants_.mapped == nullptr) constants_host_.resize(constants_.bytes);
  }
  return {};
}

std::uint32_t WebgpuQueue::place_constants(std::span<const std::byte> constants) noexcept {
  const std::size_t at = constants_used_;
  std::byte* to = constants_.mapped != nullptr ? constants_.mapped : constants_host_.data();
  std::memcpy(to + at, constants.data(), constants.size());
  constants_used_ += round_up(constants.size(), context_.limits().min_uniform_buffer_offset_alignment);
  return static_cast<std::uint32_t>(at);
}

Result<wgpu::BindGroup> WebgpuQueue::bind_group(const WgslKernel& kernel, const WgslKernel::Variant& variant,
                                                std::span<const Binding> bindings, std::size_t constants_bytes,
                                                bool cached) {
  key_.clear();
  key_.push_back(variant.id);
  for (const Binding& binding : bindings) {
    key_.push_back(binding.state->id);
    key_.push_back(binding.offset);
    key_.push_back(binding.bytes);
  }
  if (kernel.takes_constants()) {
    key_.push_back(constants_.id);
    key_.push_back(constants_bytes);
  }
  if (cached)
    if (const auto it = groups_.find(key_); it != groups_.end()) return it->second;
  std::array<wgpu::BindGroupEntry, 33> entries{};
  std::size_t count = 0;
  for (const Binding& binding : bindings) {
    entries[count].binding = static_cast<std::uint32_t>(count);
    entries[count].buffer = binding.state->buffer;
    entries[count].offset = binding.offset;
    entries[count++].size = binding.bytes;
  }
  if (kernel.takes_constants()) {
    entries[count].binding = static_cast<std::uint32_t>(count);
    entries[count].buffer = constants_.buffer;
    entries[count++].size = constants_bytes;
  }
  wgpu::BindGroupDescriptor descriptor{};
  descriptor.layout = variant.layout;
  descriptor.entry_count = count;
  descriptor.entries = entries.data();
  BERTH_TRY_ASSIGN(const wgpu::BindGroup group, context_.create_bind_group(descriptor));
  if (cached) {
    if (groups_.size() >= kMostGroups) {
      for (const auto& [key, old] : groups_) context_.calls().BindGroupRelease(old);
      groups_.clear();
    }
    groups_.emplace(key_, group);
  }
  return group;
}

Result<void> WebgpuQueue::dispatch(const WgslKernel& kernel, const WgslKernel::Variant& variant,
                                   std::span<const Binding> bindings, const std::array<std::uint32_t, 3>& groups,
                                   std::span<const std::byte> constants, bool cached) {
  const wgpu::Calls& calls = context_.calls();
  std::uint32_t constants_at = 0;
  const std::size_t constants_bytes = round_up(constants.size(), kConstantsWindow);
  BERTH_TRY(need_pass());
  BERTH_TRY_ASSIGN(const wgpu::BindGroup group, bind_group(kernel, variant, bindings, constants_bytes, cached));
  if (kernel.takes_constants()) constants_at = place_constants(constants);
  if (pass_variant_ != variant.id) {
    calls.ComputePassEncoderSetPipeline(pass_, variant.pipeline);
    pass_variant_ = variant.id;
  }
  calls.ComputePassEncoderSetBindGroup(pass_, 0, group, kernel.takes_constants() ? 1 : 0, &constants_at);
  calls.ComputePassEncoderDispatchWorkgroups(pass_, groups[0], groups[1], groups[2]);
  if (!cached) calls.BindGroupRelease(group);
  return {};
}

Result<void> WebgpuQueue::do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                                    std::span<const std::byte> constants) {
  const auto* body = dynamic_cast<const WgslKernel*>(kernel.get());
  if (body == nullptr || body->context() != &context_)
    return Error(Code::kInvalidArgument, Layer::kQueue, "the kernel was made by another device");
  const wgpu::Limits& limits = context_.limits();
  std::array<Binding, 32> bindings{};
  std::array<BufferStatePtr, 32> states;
  if (arguments.size() != body->windows() || arguments.size() > bindings.size())
    return Error(Code::kInvalidArgument, Layer::kQueue, "a launch with {} windows of a kernel that binds {}",
                 arguments.size(), body->windows());
  if (constants.empty() == body->takes_constants())
    return Error(Code::kInvalidArgument, Layer::kQueue,
                 "{} bytes of constants for a kernel that declares {} uniform; declare one as its last binding",
                 constants.size(), body->takes_constants() ? 1 : 0);
  for (const std::uint32_t groups : grid.groups)
    if (groups > limits.max_compute_workgroups_per_dimension)
      return Error(Code::kInvalidArgument, Layer::kQueue, "{} work groups along one axis, and the adapter takes {}",
                   groups, limits.max_compute_workgroups_per_dimension);
  bool mixed = false, read_twice = false, cached = true;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Window& window = arguments[i].window;
    if (window.bytes == 0)
      return Error(Code::kInvalidArgument, Layer::kQueue, "argument {} is empty, and WebGPU binds at least 4 bytes", i);
    BERTH_TRY_ASSIGN(states[i], state_of(window, "kernel argument"));
    if (window.offset % limits.min_storage_buffer_offset_alignment != 0)
      return Error(Code::kMisaligned, Layer::kQueue,
                   "argument {} starts at byte {}, and this adapter binds at multiples of {}: plan slots at "
                   "DeviceLimits::binding_alignment",
                   i, window.offset, limits.min_storage_buffer_offset_alignment);
    const std::size_t bytes = std::min<std::size_t>(round_up(window.bytes, 4), states[i]->bytes - window.offset);
    if (bytes > limits.max_storage_buffer_binding_size)
      return Error(Code::kInvalidArgument, Layer::kQueue,
                   "argument {} is {b}, and this adapter binds at most {b} ({} bytes less): split the window", i, bytes,
                   limits.max_storage_buffer_binding_size, bytes - limits.max_storage_buffer_binding_size);
    bindings[i] = {states[i].get(), window.offset, bytes};
    cached = cached && !states[i]->foreign;
    for (std::size_t j = 0; j < i; ++j) {
      if (states[j] != states[i]) continue;
      mixed = mixed || body->reads_only(i) != body->reads_only(j);
      const bool overlap =
          bindings[j].offset < window.offset + bytes && window.offset < bindings[j].offset + bindings[j].bytes;
      read_twice = read_twice || overlap;
      if (overlap && !(body->reads_only(i) && body->reads_only(j)))
        return Error(Code::kInvalidArgument, Layer::kQueue,
                     "arguments {} and {} overlap and the kernel declares one read_write, which WebGPU forbids", j, i);
    }
  }
  const WgslKernel::Variant* variant = &body->as_written();
  if (mixed) {
    // Windows that are only read may overlap; if they are declared writable they may not, although wgpu-native allows
    // it.
    if (read_twice && context_.dialect() == Dialect::kStandard)
      return Error(Code::kInvalidArgument, Layer::kQueue,
                   "two of {} windows overlap in a buffer that the kernel also writes: copy one of them out first",
                   arguments.size());
    BERTH_TRY_ASSIGN(variant, body->all_writable());
  }
  // Before the buffers are held: making room may submit the recording.
  if (body->takes_constants()) BERTH_TRY(room_for_constants(constants.size()));
  for (std::size_t i = 0; i < arguments.size(); ++i) use(states[i]);
  return dispatch(*body, *variant, std::span(bindings).first(arguments.size()), grid.groups, constants, cached);
}

Result<void> WebgpuQueue::do_record_native(std::span<const Window> uses,
                                           const std::function<Result<void>(void* native)>& record) {
  std::vector<BufferStatePtr> states;
  for (const Window& window : uses) {
    if (window.block.handle == 0) continue;  // an empty window
    BERTH_TRY_ASSIGN(states.emplace_back(), state_of(window, "window"));
  }
  BERTH_TRY(record_pending_copy());
  BERTH_TRY(need_encoder());
  end_pass();
  for (const BufferStatePtr& state : states) use(state);
  return record(encoder_);
}

// ---- submitting and waiting -------------------------------------------------------------------------------------

Result<void> WebgpuQueue::do_wait_for(Timepoint moment) {
  if (Timeline* timeline = find_timeline(moment.timeline())) {
    const MutexLock lock(timeline->mutex);
    // The one queue of the driver executes submissions in order. A timeline of this device that no driver moves on,
    // such as the arrivals of weights, is waited for.
    const Queue* const other = timeline->queue;
    if (other != nullptr && typeid(*other) == typeid(WebgpuQueue) && &other->device() == &device()) return {};
  }
  return berth::wait(moment);
}

void WebgpuQueue::abandon() noexcept {
  end_pass();
  if (encoder_ != nullptr) context_.calls().CommandEncoderRelease(std::exchange(encoder_, nullptr));
  pending_copy_ = {};
  for (const BufferStatePtr& state : used_) state->end_use(0);
  used_.clear();
  for (Chunk* chunk : {&upload_, &constants_, &scratch_})
    if (chunk->buffer != nullptr) shared_.staging.give(std::exchange(*chunk, {}), last_);
  let_go(batch_);
  batch_ = {};
}

// A batch whose reads will not be delivered.
void WebgpuQueue::let_go(Batch& batch) noexcept {
  if (batch.chunk.buffer != nullptr) shared_.staging.discard(std::exchange(batch.chunk, {}));
}

Result<void> WebgpuQueue::flush(std::uint64_t value) {
  const auto send = [&]() -> Result<void> {
    BERTH_TRY(record_pending_copy());
    end_pass();
    if (encoder_ == nullptr) return context_.health();
    shared_.staging.unmap(upload_);
    if (constants_.buffer != nullptr && constants_.mapped == nullptr && constants_used_ > 0)
      BERTH_TRY(context_.write_buffer(constants_.buffer, 0, constants_host_.data(),
                                      std::min(round_up(constants_used_, 4), constants_.bytes)));
    shared_.staging.unmap(constants_);
    BERTH_TRY_ASSIGN(last_, context_.finish_and_submit(std::exchange(encoder_, nullptr)));
    return {};
  };
  if (auto sent = send(); !sent) {
    abandon();
    return sent;
  }
  for (const BufferStatePtr& state : used_) state->end_use(last_);
  used_.clear();
  for (Chunk* chunk : {&upload_, &constants_, &scratch_})
    if (chunk->buffer != nullptr) shared_.staging.give(std::exchange(*chunk, {}), last_);
  batch_.submission = last_;
  batch_.value = value;
  const MutexLock lock(flight_mutex_);
  if (value > 0 || batch_.chunk.buffer != nullptr) flight_.push_back(std::move(batch_));
  batch_ = {};
  return {};
}

Result<void> WebgpuQueue::do_submit(std::uint64_t value) {
  return flush(value);
}

Result<void> WebgpuQueue::bring_back(const Batch& batch) {
  if (batch.reads.empty()) return {};
  const std::size_t bytes = round_up(batch.reads.back().offset + batch.reads.back().bytes, 4);
  BERTH_TRY_ASSIGN(const std::byte* from, context_.map(batch.chunk.buffer, wgpu::kMapRead, 0, bytes));
  for (const PendingRead& read : batch.reads) std::memcpy(read.target, from + read.offset, read.bytes);
  context_.calls().BufferUnmap(batch.chunk.buffer);
  return {};
}

void WebgpuQueue::complete_batches() {
  while (!flight_.empty()) {
    Batch& batch = flight_.front();
    if (batch.failed || !context_.is_done(batch.submission)) return;
    // An error that no call was waiting for is returned to the next one that waits.
    auto ok = context_.health();
    if (ok) ok = bring_back(batch);
    if (!ok) {
      batch.failed = ok.error();
      return;
    }
    if (batch.chunk.buffer != nullptr) shared_.staging.give(std::exchange(batch.chunk, {}), batch.submission);
    let_go(batch);
    if (batch.value > 0) reached_.store(batch.value, std::memory_order_release);
    flight_.pop_front();
  }
}

// Large reads go through a few chunks: the oldest must be delivered before another is started.
Result<void> WebgpuQueue::room_for_reads() {
  while (true) {
    Submission oldest = 0;
    {
      const MutexLock lock(flight_mutex_);
      complete_batches();
      const auto reads = [](const Batch& batch) { return batch.chunk.buffer != nullptr; };
      if (static_cast<std::size_t>(std::count_if(flight_.begin(), flight_.end(), reads)) < kReadsInFlight) return {};
      if (flight_.front().failed) return *flight_.front().failed;  // wait() returns it again
      oldest = std::find_if(flight_.begin(), flight_.end(), reads)->submission;
    }
    BERTH_TRY(context_.wait(oldest));
  }
}

Result<void> WebgpuQueue::do_wait(std::uint64_t value) {
  while (reached_.load(std::memory_order_acquire) < value) {
    Submission until = 0;
    {
      const MutexLock lock(flight_mutex_);
      complete_batches();
      if (flight_.empty() || reached_.load(std::memory_order_acquire) >= value) break;
      Batch& oldest = flight_.front();
      if (oldest.failed) {
        const Error error = *oldest.failed;
        if (oldest.value > 0) reached_.store(oldest.value, std::memory_order_release);
        let_go(oldest);
        flight_.pop_front();
        return error;
      }
      until = oldest.submission;
    }
    BERTH_TRY(context_.wait(until));
  }
  return context_.health();
}

std::uint64_t WebgpuQueue::poll() noexcept {
  if (flight_mutex_.try_lock()) {
    complete_batches();
    flight_mutex_.unlock();
  }
  return reached_.load(std::memory_order_acquire);
}

}  // namespace berth::internal::webgpu
