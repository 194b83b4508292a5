#include "berth/alloc/growable.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/uses.h"
#include "memory/zero_block.h"

namespace berth {

using namespace internal;

namespace {

class MappedGrowable final : public GrowableMemory {
 public:
  MappedGrowable(DevicePtr device, std::unique_ptr<AddressSpace> space, std::uint64_t base, std::size_t bytes,
                 std::size_t step, OffsetAllocator offsets)
      : device_(std::move(device)),
        space_(std::move(space)),
        base_(base),
        bytes_(bytes),
        step_(step),
        offsets_(std::move(offsets)),
        steps_(bytes / step) {}

  ~MappedGrowable() override {
    for (const Pending& one : pending_) static_cast<void>(internal::finish(one.last_use));
    free_reached(true, TimelineId::kNone);
    bool empty = true;
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].mapped) {
        empty = space_->unmap(base_ + i * step_, step_).has_value() && empty;
        device_->discharge(steps_[i].label, step_);
      }
    // If the driver failed to unmap memory, its addresses stay reserved.
    if (empty) space_->unreserve(base_, bytes_);
  }

  Result<Block> allocate(const BlockSpec& spec) override {
    BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
    if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
    if (spec.host == HostAccess::kRequired && !space_->is_host())
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "{} bytes with a host pointer were requested from growable device memory, which has none",
                   spec.bytes);
    if (spec.alignment > space_->granularity())
      return Error(Code::kUnsupported, Layer::kAllocator, "an alignment of {} exceeds the {} of growable memory",
                   spec.alignment, space_->granularity());
    BERTH_TRY_ASSIGN(const std::uint64_t offset, device_->take_under_pressure(spec, [&] { return take(spec); }));
    Block block{.handle = base_ + offset, .bytes = spec.bytes, .label = spec.label, .usage = spec.usage};
    block.flags = expected_flags(spec);
    if (space_->is_host()) block.host = reinterpret_cast<std::byte*>(block.handle);
    if (spec.zero)
      if (auto zeroed = zero_block(*device_, block, block.bytes); !zeroed) {
        release(block, {});
        return zeroed.error();
      }
    return block;
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    if (block.bytes == 0) return;
    if (!is_reached(last_use)) {
      try {
        const MutexLock lock(mutex_);
        pending_.push_back({block.handle - base_, last_use});
        pending_bytes_ += *offsets_.size_of(block.handle - base_);
        return;
      } catch (...) {
        // No memory to store the pending free. Waiting is slow, but always correct.
        static_cast<void>(internal::finish(last_use));
      }
    }
    const MutexLock lock(mutex_);
    give_back(block.handle - base_);
  }

  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "growable memory"; }
  BlockFlags expected_flags(const BlockSpec&) noexcept override {
    return space_->is_host() ? BlockFlags::kHostPointer | BlockFlags::kHostTransfer : BlockFlags::kNone;
  }

  std::size_t trim(std::size_t keep_bytes) noexcept override {
    const MutexLock lock(mutex_);
    free_reached(true, TimelineId::kNone);
    return unmap_idle(keep_bytes);
  }

  void explain(OutOfMemory& report) const override {
    device_->explain(report);
    const MutexLock lock(mutex_);
    report.live_bytes = used_;
    report.live_count = offsets_.allocations();
    report.pending_bytes += pending_bytes_;
    report.largest_free = offsets_.counters().largest_free;
  }

  GrowableCounters counters() const override {
    const MutexLock lock(mutex_);
    return {bytes_, mapped_, used_, pending_bytes_};
  }

 private:
  struct Step {
    bool mapped = false;
    Name label{};          // of the request that it was mapped for
    std::size_t live = 0;  // blocks that overlap it
  };
  struct Pending {
    std::uint64_t offset;
    Timepoint last_use;
  };

  // The offset of a new block with memory mapped. A failed call changes nothing.
  Result<std::uint64_t> take(const BlockSpec& spec) {
    auto cause = OutOfMemory::Cause::kCapacity;
    std::string driver;
    {
      // Zeroing does not go through the queue of the timeline, so memory to be zeroed must be idle.
      const TimelineId timeline = spec.zero ? TimelineId::kNone : spec.on;
      const MutexLock lock(mutex_);
      free_reached(false, timeline);
      auto found = offsets_.allocate(spec.bytes, spec.alignment);
      if (!found) {
        free_reached(true, timeline);
        found = offsets_.allocate(spec.bytes, spec.alignment);
      }
      if (found) {
        const std::size_t bytes = *offsets_.size_of(*found);
        auto grown = grow(spec, *found, bytes);
        // Unmapping empty steps may free enough memory.
        if (!grown && grown.error().code() == Code::kOutOfMemory && unmap_idle(0) > 0)
          grown = grow(spec, *found, bytes);
        if (grown) {
          used_ += bytes;
          return *found;
        }
        static_cast<void>(offsets_.release(*found));
        if (grown.error().code() != Code::kOutOfMemory || grown.error().out_of_memory() != nullptr)
          return grown.error();
        driver = grown.error().message();
      } else {
        if (found.error().code() != Code::kOutOfMemory) return found.error();
        if (offsets_.capacity() - offsets_.used() >= spec.bytes) cause = OutOfMemory::Cause::kFragmentation;
        driver = "all reserved addresses are in use; raise GrowableOptions::reserve_bytes";
      }
    }
    return out_of_memory(cause, *this, spec, 0, 0, std::move(driver));
  }

  // Maps every step in [offset, offset + bytes). If that fails, unmaps those it has mapped.
  Result<void> grow(const BlockSpec& spec, std::uint64_t offset, std::size_t bytes) BERTH_REQUIRES(mutex_) {
    const std::size_t first = offset / step_;
    const std::size_t end = (offset + bytes - 1) / step_ + 1;
    std::vector<std::size_t> fresh;
    for (std::size_t i = first; i < end; ++i)
      if (!steps_[i].mapped) fresh.push_back(i);
    if (!fresh.empty()) BERTH_TRY(map(spec, fresh));
    for (std::size_t i = first; i < end; ++i) ++steps_[i].live;
    return {};
  }

  Result<void> map(const BlockSpec& spec, const std::vector<std::size_t>& steps) BERTH_REQUIRES(mutex_) {
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

  // Unmaps steps without live blocks until `keep_bytes` remain mapped. Returns the bytes unmapped.
  std::size_t unmap_idle(std::size_t keep_bytes) noexcept BERTH_REQUIRES(mutex_) {
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

  void give_back(std::uint64_t offset) noexcept BERTH_REQUIRES(mutex_) {
    const std::size_t bytes = *offsets_.size_of(offset);
    for (std::size_t i = offset / step_; i <= (offset + bytes - 1) / step_; ++i) --steps_[i].live;
    used_ -= bytes;
    static_cast<void>(offsets_.release(offset));
  }

  // Frees pending blocks that are idle, or whose last use is on the timeline that will use them next. `all` also checks
  // blocks behind the oldest one.
  void free_reached(bool all, TimelineId timeline) noexcept BERTH_REQUIRES(mutex_) {
    const auto over = [&](const Pending& one) {
      return is_reached(one.last_use) || (timeline != TimelineId::kNone && one.last_use.timeline() == timeline);
    };
    for (auto one = pending_.begin(); one != pending_.end();) {
      if (!over(*one)) {
        if (!all) return;
        ++one;
        continue;
      }
      pending_bytes_ -= *offsets_.size_of(one->offset);
      give_back(one->offset);
      one = pending_.erase(one);
    }
  }

  const DevicePtr device_;
  const std::unique_ptr<AddressSpace> space_;
  const std::uint64_t base_;
  const std::size_t bytes_;
  const std::size_t step_;
  mutable Mutex mutex_;
  OffsetAllocator offsets_ BERTH_GUARDED_BY(mutex_);
  std::vector<Step> steps_ BERTH_GUARDED_BY(mutex_);
  std::vector<Pending> pending_ BERTH_GUARDED_BY(mutex_);
  std::size_t mapped_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t used_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t pending_bytes_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::shared_ptr<GrowableMemory>> make_growable(DevicePtr device, const GrowableOptions& options) {
  if (device == nullptr)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "growable memory of {} bytes needs a device",
                 options.reserve_bytes);
  if (options.reserve_bytes == 0 || options.step_bytes == 0)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "growable memory of {} bytes in steps of {}: neither may be zero", options.reserve_bytes,
                 options.step_bytes);
  BERTH_TRY_ASSIGN(std::unique_ptr<AddressSpace> space, device->make_address_space());
  // No address space has half of these addresses, and below that no sum here can overflow.
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;
  if (options.reserve_bytes > kMost || options.step_bytes > kMost)
    return Error(Code::kOutOfMemory, Layer::kAllocator,
                 "growable memory of {b} in steps of {b}, and there are no more than {b} of addresses",
                 options.reserve_bytes, options.step_bytes, kMost);
  const std::size_t step = round_up(options.step_bytes, space->granularity());
  const std::size_t bytes = round_up(options.reserve_bytes, step);
  BERTH_TRY_ASSIGN(OffsetAllocator offsets, OffsetAllocator::make(bytes, 256));
  BERTH_TRY_ASSIGN(const std::uint64_t base, space->reserve(bytes));
  return std::shared_ptr<GrowableMemory>(
      std::make_shared<MappedGrowable>(std::move(device), std::move(space), base, bytes, step, std::move(offsets)));
}

}  // namespace berth
