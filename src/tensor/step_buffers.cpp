#include "berth/tensor/step_buffers.h"

#include <algorithm>
#include <bit>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "memory/check_alignment.h"
#include "memory/uses.h"

namespace berth {

using namespace internal;

namespace {

// Zeroes memory on any device, and waits for it.
Result<void> zero(const Buffer& buffer) {
  BERTH_TRY_ASSIGN(const Window window, buffer.window());
  BERTH_TRY_ASSIGN(Queue* const queue, buffer.device().default_queue());
  BERTH_TRY(internal::wait_for_uses(*queue, *window.owner));
  BERTH_TRY(queue->fill(window, 0));
  return queue->finish();
}

}  // namespace

StepBuffers::StepBuffers(AllocatorPtr allocator, std::size_t most_used)
    : allocator_(std::move(allocator)), most_used_(most_used) {}

StepBuffers::~StepBuffers() {
  clear();
}

std::size_t StepBuffers::bucket_of(std::size_t rounded, const BufferOptions& options) {
  const auto same = [&](const BufferOptions& kind) {
    return kind.usage == options.usage && kind.host == options.host && kind.alignment == options.alignment &&
           kind.tag == options.tag;
  };
  // A program uses a handful of kinds.
  const auto kind = static_cast<std::size_t>(std::find_if(kinds_.begin(), kinds_.end(), same) - kinds_.begin());
  if (kind == kinds_.size()) {
    buckets_.resize((kind + 1) * kSizes);
    kinds_.push_back(options);
  }
  return kind * kSizes + static_cast<std::size_t>(std::countr_zero(rounded));
}

Result<void> StepBuffers::add_fresh(std::size_t bucket, std::size_t rounded, const BufferOptions& options) {
  // Reserves room for every buffer of the bucket, so that giving back never allocates.
  Bucket& in = buckets_[bucket];
  if (in.spare.capacity() <= in.entries) in.spare.reserve(2 * in.entries + 2);
  if (used_.capacity() <= entries_.size()) used_.reserve(2 * entries_.size() + 16);
  BufferOptions fresh = options;
  fresh.zero = true;
  BERTH_TRY_ASSIGN(Buffer whole, Buffer::allocate(allocator_, DType::kU8, {rounded}, fresh));
  const auto index = static_cast<std::uint32_t>(entries_.size());
  by_storage_.emplace(whole.storage_id(), index);
  entries_.push_back({std::move(whole), bucket, kFree, 0});
  in.spare.push_back(index);
  ++in.entries;
  bytes_ += rounded;
  ++fresh_;
  return {};
}

Result<Buffer> StepBuffers::take(DType dtype, const Shape& shape, const BufferOptions& options) {
  BERTH_TRY_ASSIGN(const std::size_t elements, shape.element_count());
  BERTH_TRY_ASSIGN(const std::size_t bytes, byte_size(dtype, elements));
  // Checked before bucket_of, which makes buckets for each alignment.
  BERTH_TRY(check_alignment(options.alignment, Layer::kAllocator));
  if (allocator_ == nullptr)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "these StepBuffers were made without an allocator");
  if (used_.size() >= most_used_) reclaim_dropped();
  if (used_.size() >= most_used_)
    return Error(Code::kOutOfMemory, Layer::kAllocator,
                 "{} buffers are in use at once; call reset() at the end of each step, or construct StepBuffers "
                 "with a larger limit",
                 most_used_);
  const std::size_t rounded = std::bit_ceil(std::max<std::size_t>(bytes, 1));
  const std::size_t bucket = bucket_of(rounded, options);
  std::vector<std::uint32_t>& spare = buckets_[bucket].spare;
  if (spare.empty() && used_.size() >= look_for_dropped_at_) {
    reclaim_dropped();
    look_for_dropped_at_ = std::max(kLookForDropped, 2 * used_.size());
  }
  bool reused = !spare.empty();
  if (!reused)
    if (auto added = add_fresh(bucket, rounded, options); !added) {
      if (added.error().code() != Code::kOutOfMemory) return added.error();
      reclaim_dropped();
      if (spare.empty()) return added.error();
      reused = true;
    }
  if (reused) {
    if (options.zero) BERTH_TRY(zero(entries_[spare.back()].whole));
    ++reused_;
  }
  const std::uint32_t index = spare.back();
  BERTH_TRY_ASSIGN(Buffer buffer, entries_[index].whole.view(0, dtype, shape));
  spare.pop_back();
  entries_[index].used_at = used_.size();
  entries_[index].handle = buffer.id();
  used_.push_back(index);
  return buffer;
}

Result<Buffer> StepBuffers::allocate(DType dtype, const Shape& shape, const BufferOptions& options) {
  const MutexLock lock(mutex_);
  return take(dtype, shape, options);
}

Result<std::vector<Buffer>> StepBuffers::allocate_batch(std::span<const BufferRequest> requests) {
  std::vector<Buffer> buffers;
  buffers.reserve(requests.size());
  const MutexLock lock(mutex_);
  for (const BufferRequest& request : requests) {
    auto buffer = take(request.dtype, request.shape, request.options);
    if (!buffer) {
      for (const Buffer& taken : buffers) give_back(by_storage_.at(taken.storage_id()));
      return buffer.error();
    }
    buffers.push_back(*std::move(buffer));
  }
  return buffers;
}

void StepBuffers::give_back(std::uint32_t index) noexcept {
  Entry& entry = entries_[index];
  // The last used buffer takes its index, so that giving back takes constant time.
  const std::uint32_t last = used_.back();
  used_[entry.used_at] = last;
  entries_[last].used_at = entry.used_at;
  used_.pop_back();
  entry.used_at = kFree;
  buckets_[entry.bucket].spare.push_back(index);
}

void StepBuffers::reclaim_dropped() noexcept {
  for (std::size_t at = used_.size(); at-- > 0;) {
    const Buffer& whole = entries_[used_[at]].whole;
    if (!whole.is_unique()) continue;
    // The user who dropped the buffer may still have work in flight, and the next user may be on another queue.
    const auto window = whole.window();
    if (!window || !is_reached(Timepoint{window->owner->last_use.load(std::memory_order_acquire)})) continue;
    give_back(used_[at]);
    ++reclaimed_;
  }
}

Result<void> StepBuffers::release(const Buffer& buffer) {
  const MutexLock lock(mutex_);
  const auto found = by_storage_.find(buffer.storage_id());
  if (found == by_storage_.end())
    return Error(Code::kNotOwned, Layer::kAllocator, "buffer {} does not belong to these StepBuffers", buffer.id());
  // The storage may have another user by now, so only the handle of the present one may release it.
  const Entry& entry = entries_[found->second];
  if (entry.used_at == kFree)
    return Error(Code::kNotOwned, Layer::kAllocator, "buffer {} was released before", buffer.id());
  if (entry.handle != buffer.id())
    return Error(Code::kNotOwned, Layer::kAllocator,
                 "buffer {} was released before, or is a view: its memory is in use as buffer {}", buffer.id(),
                 entry.handle);
  give_back(found->second);
  return {};
}

void StepBuffers::reset() noexcept {
  const MutexLock lock(mutex_);
  while (!used_.empty()) give_back(used_.back());
}

void StepBuffers::clear() noexcept {
  const MutexLock lock(mutex_);
  for (const auto& [id, buffer] : registered_)
    if (Residency* residency = buffer.device().residency())
      if (auto window = buffer.window()) residency->remove(window->block);
  registered_.clear();
  by_storage_.clear();
  used_.clear();
  buckets_.clear();
  kinds_.clear();
  entries_.clear();
  look_for_dropped_at_ = kLookForDropped;
  bytes_ = 0;
}

Result<void> StepBuffers::register_existing(const Buffer& buffer) {
  if (allocator_ == nullptr)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "these StepBuffers were made without an allocator");
  // Compared before window(), which allocates a lazy buffer.
  if (&buffer.device() != &allocator_->device())
    return Error::with_text(Code::kInvalidArgument, Layer::kAllocator,
                            "a buffer of " + std::string(buffer.device().name()) +
                                " cannot be registered with a pool of " + std::string(allocator_->device().name()));
  BERTH_TRY_ASSIGN(const Window window, buffer.window());
  const MutexLock lock(mutex_);
  if (!registered_.emplace(buffer.storage_id(), buffer).second) return {};
  // The set knows the memory by its address, so it must not move.
  static_cast<void>(buffer.native_handle());
  if (Residency* residency = window.device->residency()) residency->add(window.block);
  return {};
}

StepBuffersCounters StepBuffers::counters() const {
  const MutexLock lock(mutex_);
  return {.fresh = fresh_,
          .reused = reused_,
          .reclaimed = reclaimed_,
          .used = used_.size(),
          .free = entries_.size() - used_.size(),
          .registered = registered_.size(),
          .bytes = bytes_};
}

}  // namespace berth
