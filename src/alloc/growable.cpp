#include "berth/alloc/growable.h"

#include <algorithm>
#include <limits>
#include <string>

#include "alloc/growable_memory.h"
#include "alloc/slab_memory.h"
#include "base/round_up.h"
#include "base/try.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/uses.h"
#include "memory/zero_block.h"

namespace berth {
namespace internal {

MappedGrowable::MappedGrowable(DevicePtr device, std::unique_ptr<AddressSpace> space, std::uint64_t base,
                               std::size_t bytes, std::size_t step, OffsetAllocator offsets)
    : device_(std::move(device)),
      space_(std::move(space)),
      base_(base),
      bytes_(bytes),
      step_(step),
      offsets_(std::move(offsets)),
      steps_(bytes / step) {}

MappedGrowable::~MappedGrowable() {
  queue_.reset();
  for (const Pending& one : pending_) static_cast<void>(internal::finish(one.last_use));
  free_reached(true);
  bool empty = true;
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].mapped) {
      empty = space_->unmap(base_ + i * step_, step_).has_value() && empty;
      device_->discharge(steps_[i].label, step_);
    }
  // If the driver failed to unmap memory, its addresses stay reserved.
  if (empty) space_->unreserve(base_, bytes_);
}

Result<Block> MappedGrowable::allocate(const BlockSpec& spec) {
  BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
  if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
  if (spec.host == HostAccess::kRequired && !space_->is_host())
    return Error(Code::kUnsupported, Layer::kAllocator,
                 "{} bytes with a host pointer were requested from growable device memory, which has none", spec.bytes);
  if (spec.alignment > space_->granularity())
    return Error(Code::kUnsupported, Layer::kAllocator, "an alignment of {} exceeds the {} of growable memory",
                 spec.alignment, space_->granularity());
  BERTH_TRY_ASSIGN(const std::uint64_t offset, device_->take_under_pressure(spec, [&] { return take(spec); }));
  Block block{.handle = base_ + offset, .bytes = spec.bytes, .label = spec.label, .usage = spec.usage};
  block.flags = expected_flags(spec);
  block.host = host_at(offset);
  if (spec.zero)
    if (auto zeroed = zero_block(*device_, block, block.bytes); !zeroed) {
      release(block, {});
      return zeroed.error();
    }
  return block;
}

void MappedGrowable::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes == 0) return;
  const std::uint64_t offset = block.handle - base_;
  if (unfinished_.load(std::memory_order_acquire) != 0) last_use = after_unfinished_move(offset, last_use);
  while (true) {
    try {
      const MutexLock lock(mutex_);
      last_use = idle_after(offset, last_use);
      forget_owner(offset);
      if (is_reached(last_use)) return give_back(offset);
      pending_.push_back({offset, last_use});
      pending_bytes_ += *offsets_.size_of(offset);
      return;
    } catch (...) {
      // No memory to store the pending free. Waiting is slow, but always correct.
      static_cast<void>(internal::finish(last_use));
      last_use = {};
    }
  }
}

Timepoint MappedGrowable::idle_after(std::uint64_t offset, Timepoint last_use) noexcept {
  if (handed_on_.empty()) return last_use;
  const auto found = handed_on_.find(offset);
  if (found == handed_on_.end()) return last_use;
  // Work recorded since then comes after it.
  if (is_reached(last_use)) last_use = found->second;
  handed_on_.erase(found);
  return last_use;
}

BlockFlags MappedGrowable::expected_flags(const BlockSpec&) noexcept {
  return space_->is_host() ? BlockFlags::kHostPointer | BlockFlags::kHostTransfer : BlockFlags::kNone;
}

std::size_t MappedGrowable::trim(std::size_t keep_bytes) noexcept {
  const MutexLock lock(mutex_);
  free_reached(true);
  return unmap_idle(keep_bytes);
}

void MappedGrowable::explain(OutOfMemory& report) const {
  device_->explain(report);
  const MutexLock lock(mutex_);
  report.live_bytes = used_;
  report.live_count = offsets_.allocations();
  report.pending_bytes += pending_bytes_;
  report.largest_free = offsets_.counters().largest_free;
}

GrowableCounters MappedGrowable::counters() const {
  const MutexLock lock(mutex_);
  return {bytes_, mapped_, used_, pending_bytes_};
}

Result<std::uint64_t> MappedGrowable::take(const BlockSpec& spec) {
  auto cause = OutOfMemory::Cause::kCapacity;
  std::string driver;
  {
    // Zeroing does not go through the queue of the timeline, so memory to be zeroed must be idle.
    const TimelineId timeline = spec.zero ? TimelineId::kNone : spec.on;
    const MutexLock lock(mutex_);
    free_reached(false);
    if (const auto found = take_pending(spec, timeline, true)) return *found;
    auto found = offsets_.allocate(spec.bytes, spec.alignment);
    if (!found) {
      free_reached(true);
      found = offsets_.allocate(spec.bytes, spec.alignment);
    }
    if (found) {
      const std::size_t bytes = *offsets_.size_of(*found);
      auto grown = grow(spec, first_step(*found), last_step(*found, bytes) + 1);
      // Unmapping empty steps may free enough memory.
      if (!grown && grown.error().code() == Code::kOutOfMemory && unmap_idle(0) > 0)
        grown = grow(spec, first_step(*found), last_step(*found, bytes) + 1);
      if (grown) {
        used_ += bytes;
        return *found;
      }
      static_cast<void>(offsets_.release(*found));
      if (grown.error().code() != Code::kOutOfMemory) return grown.error();
      if (const auto pending = take_pending(spec, timeline, false)) return *pending;
      if (grown.error().out_of_memory() != nullptr) return grown.error();
      driver = grown.error().message();
    } else {
      if (found.error().code() != Code::kOutOfMemory) return found.error();
      if (const auto pending = take_pending(spec, timeline, false)) return *pending;
      if (offsets_.capacity() - offsets_.used() >= spec.bytes) cause = OutOfMemory::Cause::kFragmentation;
      driver = "all reserved addresses are in use; raise GrowableOptions::reserve_bytes";
    }
  }
  return out_of_memory(cause, *this, spec, 0, 0, std::move(driver));
}

// The rest of such a block cannot serve others, because work of the timeline may still use it: the block is taken as a
// whole.
std::optional<std::uint64_t> MappedGrowable::take_pending(const BlockSpec& spec, TimelineId timeline, bool exact) {
  if (timeline == TimelineId::kNone) return std::nullopt;
  const std::size_t most = exact ? round_up(spec.bytes, offsets_.granule()) : bytes_;
  auto best = pending_.end();
  std::size_t size = 0;
  for (auto one = pending_.begin(); one != pending_.end(); ++one) {
    if (one->last_use.timeline() != timeline || one->offset % spec.alignment != 0) continue;
    const std::size_t bytes = *offsets_.size_of(one->offset);
    if (bytes < spec.bytes || bytes > most || (best != pending_.end() && bytes >= size)) continue;
    best = one;
    size = bytes;
  }
  if (best == pending_.end()) return std::nullopt;
  const std::uint64_t offset = best->offset;
  handed_on_[offset] = best->last_use;
  pending_.erase(best);
  pending_bytes_ -= size;
  return offset;
}

Result<void> MappedGrowable::grow(const BlockSpec& spec, std::size_t first, std::size_t end) {
  std::vector<std::size_t> fresh;
  for (std::size_t i = first; i < end; ++i)
    if (!steps_[i].mapped) fresh.push_back(i);
  if (!fresh.empty()) BERTH_TRY(map(spec, fresh));
  for (std::size_t i = first; i < end; ++i) ++steps_[i].live;
  return {};
}

Result<void> MappedGrowable::map(const BlockSpec& spec, const std::vector<std::size_t>& steps) {
  BERTH_TRY_ASSIGN(Charge charge, device_->charge(spec, step_, steps.size()));
  Result<void> outcome;
  std::size_t mapped = 0;
  while (mapped < steps.size() && (outcome = space_->map(base_ + steps[mapped] * step_, step_))) {
    steps_[steps[mapped]] = {.mapped = true, .label = spec.label, .live = 0};
    ++mapped;
  }
  if (!outcome)
    for (std::size_t i = mapped; i-- > 0;)
      if (space_->unmap(base_ + steps[i] * step_, step_)) {
        steps_[steps[i]].mapped = false;
        --mapped;
      }
  charge.keep(mapped);
  mapped_ += mapped * step_;
  return outcome;
}

std::size_t MappedGrowable::unmap_idle(std::size_t keep_bytes) noexcept {
  std::size_t given = 0;
  // From the end, so that the remaining steps are contiguous.
  for (std::size_t i = steps_.size(); i-- > 0 && mapped_ > keep_bytes + used_;) {
    if (!steps_[i].mapped || steps_[i].live != 0) continue;
    if (!space_->unmap(base_ + i * step_, step_)) continue;
    device_->discharge(steps_[i].label, step_);
    steps_[i].mapped = false;
    mapped_ -= step_;
    given += step_;
  }
  return given;
}

void MappedGrowable::give_back(std::uint64_t offset) noexcept {
  const std::size_t bytes = *offsets_.size_of(offset);
  for (std::size_t i = first_step(offset); i <= last_step(offset, bytes); ++i) --steps_[i].live;
  used_ -= bytes;
  static_cast<void>(offsets_.release(offset));
}

void MappedGrowable::free_reached(bool all) noexcept {
  for (auto one = pending_.begin(); one != pending_.end();) {
    if (!is_reached(one->last_use)) {
      if (!all) return;
      ++one;
      continue;
    }
    pending_bytes_ -= *offsets_.size_of(one->offset);
    give_back(one->offset);
    one = pending_.erase(one);
  }
}

}  // namespace internal

using namespace internal;

Result<std::shared_ptr<GrowableMemory>> make_growable(DevicePtr device, const GrowableOptions& options) {
  if (device == nullptr)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "growable memory of {} bytes needs a device",
                 options.reserve_bytes);
  if (options.reserve_bytes == 0 || options.step_bytes == 0)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "growable memory of {} bytes in steps of {}: neither may be zero", options.reserve_bytes,
                 options.step_bytes);
  auto made = device->make_address_space();
  const bool takes_objects = !made && made.error().code() == Code::kUnsupported && device->dlpack_place({}).is_object;
  if (!made && !takes_objects) return made.error();
  // No address space has half of these addresses, and below that no sum here can overflow.
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;
  if (options.reserve_bytes > kMost || options.step_bytes > kMost)
    return Error(Code::kOutOfMemory, Layer::kAllocator,
                 "growable memory of {b} in steps of {b}, and there are no more than {b} of addresses",
                 options.reserve_bytes, options.step_bytes, kMost);
  if (takes_objects) {
    // Memory comes in objects of the driver instead of addresses.
    return std::shared_ptr<GrowableMemory>(
        std::make_shared<SlabMemory>(std::move(device), options.reserve_bytes, options.step_bytes));
  }
  const std::unique_ptr<AddressSpace>& space = *made;
  const std::size_t step = round_up(options.step_bytes, space->granularity());
  const std::size_t bytes = round_up(options.reserve_bytes, step);
  BERTH_TRY_ASSIGN(OffsetAllocator offsets, OffsetAllocator::make(bytes, 256));
  BERTH_TRY_ASSIGN(const std::uint64_t base, space->reserve(bytes));
  return std::shared_ptr<GrowableMemory>(
      std::make_shared<MappedGrowable>(std::move(device), *std::move(made), base, bytes, step, std::move(offsets)));
}

}  // namespace berth
