#include "berth/segment.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <vector>

#include "berth/out_of_memory.h"
#include "berth/tlsf.h"
#include "core/address_space.h"
#include "core/try.h"

namespace berth {
namespace {

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

class MappedSegment final : public Segment {
 public:
  MappedSegment(DevicePtr device, std::unique_ptr<AddressSpace> space, std::uint64_t base, std::size_t bytes,
                std::size_t step, Tlsf offsets)
      : device_(std::move(device)),
        space_(std::move(space)),
        base_(base),
        bytes_(bytes),
        step_(step),
        offsets_(std::move(offsets)),
        steps_(bytes / step) {}

  ~MappedSegment() override {
    free_reached(true, 0);
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].mapped) static_cast<void>(space_->unmap(base_ + i * step_, step_));
    space_->unreserve(base_, bytes_);
  }

  Result<Block> allocate(const BlockSpec& spec) override {
    if (!std::has_single_bit(spec.alignment))
      return Error(Code::kInvalidArgument, Layer::kAllocator, "an alignment of {} is not a power of two",
                   spec.alignment);
    if (spec.bytes == 0) return Block{.label = spec.label.id(), .usage = spec.usage};
    if (spec.host == HostAccess::kRequired && !space_->is_host())
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "{} bytes with a host pointer from a segment of device memory", spec.bytes);
    if (spec.alignment > space_->granularity())
      return Error(Code::kUnsupported, Layer::kAllocator, "an alignment of {} is past a segment's {}", spec.alignment,
                   space_->granularity());
    std::uint64_t offset = 0;
    std::optional<OutOfMemory::Cause> refused;
    {
      const std::lock_guard lock(mutex_);
      free_reached(false, spec.on);
      auto found = offsets_.allocate(spec.bytes, spec.alignment);
      if (!found) {
        free_reached(true, spec.on);
        found = offsets_.allocate(spec.bytes, spec.alignment);
      }
      if (!found) {
        if (found.error().code() != Code::kOutOfMemory) return found.error();
        const std::uint64_t free = offsets_.capacity() - offsets_.used();
        refused = free < spec.bytes ? OutOfMemory::Cause::kCapacity : OutOfMemory::Cause::kFragmentation;
      } else {
        offset = *found;
        const std::size_t taken = *offsets_.size_of(offset);
        auto grown = grow(offset, taken);
        if (grown) {
          used_ += taken;
        } else {
          static_cast<void>(offsets_.release(offset));
          if (grown.error().code() != Code::kOutOfMemory) return grown.error();
          refused = OutOfMemory::Cause::kCapacity;
        }
      }
    }
    if (refused) return out_of_memory(*refused, *this, spec);
    Block block{.handle = base_ + offset, .bytes = spec.bytes, .label = spec.label.id(), .usage = spec.usage};
    if (space_->is_host()) {
      block.host = reinterpret_cast<std::byte*>(block.handle);
      block.flags = BlockFlags::kHostPointer | BlockFlags::kHostTransfer;
    }
    if (spec.zero)
      if (auto zeroed = zero(block); !zeroed) {
        release(block, {});
        return zeroed.error();
      }
    return block;
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    if (block.bytes == 0) return;
    const bool reached = is_reached(last_use);
    const std::lock_guard lock(mutex_);
    if (!reached) {
      try {
        pending_.push_back({block.handle - base_, last_use});
        pending_bytes_ += *offsets_.size_of(block.handle - base_);
        return;
      } catch (...) {
        // No memory to remember it by: waiting is slow and always right.
        static_cast<void>(wait(last_use));
      }
    }
    give_back(block.handle - base_);
  }

  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "segment"; }

  std::size_t trim(std::size_t keep_bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    free_reached(true, 0);
    std::size_t given = 0;
    // From the end, so that what stays is together.
    for (std::size_t i = steps_.size(); i-- > 0 && mapped_ > keep_bytes + used_;) {
      if (!steps_[i].mapped || steps_[i].live != 0) continue;
      if (!space_->unmap(base_ + i * step_, step_)) continue;
      steps_[i].mapped = false;
      mapped_ -= step_;
      given += step_;
    }
    return given;
  }

  void explain(OutOfMemory& report) const override {
    device_->explain(report);
    const std::lock_guard lock(mutex_);
    report.live_bytes = used_;
    report.live_count = offsets_.allocations();
    report.pending_bytes += pending_bytes_;
  }

  SegmentCounters counters() const override {
    const std::lock_guard lock(mutex_);
    return {bytes_, mapped_, used_, pending_bytes_};
  }

 private:
  struct Step {
    bool mapped = false;
    std::size_t live = 0;  // blocks that reach into it
  };
  struct Pending {
    std::uint64_t offset;
    Timepoint last_use;
  };

  // Gives memory to every step under [offset, offset + bytes), or to none that had it not.
  Result<void> grow(std::uint64_t offset, std::size_t bytes) {
    const std::size_t first = offset / step_;
    const std::size_t last = (offset + bytes - 1) / step_;
    std::vector<std::size_t> fresh;
    for (std::size_t i = first; i <= last; ++i) {
      if (steps_[i].mapped) continue;
      if (auto mapped = space_->map(base_ + i * step_, step_); !mapped) {
        for (const std::size_t undo : fresh)
          if (space_->unmap(base_ + undo * step_, step_)) {
            steps_[undo].mapped = false;
            mapped_ -= step_;
          }
        return mapped;
      }
      steps_[i].mapped = true;
      mapped_ += step_;
      fresh.push_back(i);
    }
    for (std::size_t i = first; i <= last; ++i) ++steps_[i].live;
    return {};
  }

  void give_back(std::uint64_t offset) noexcept {
    const std::size_t bytes = *offsets_.size_of(offset);
    for (std::size_t i = offset / step_; i <= (offset + bytes - 1) / step_; ++i) --steps_[i].live;
    used_ -= bytes;
    static_cast<void>(offsets_.release(offset));
  }

  // Takes back what is idle, or will be used next by the line that used it last. `all` also looks behind the oldest.
  void free_reached(bool all, std::uint16_t line) noexcept {
    const auto over = [&](const Pending& one) {
      return is_reached(one.last_use) || (line != 0 && one.last_use.line() == line);
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

  Result<void> zero(const Block& block) {
    BERTH_TRY_ASSIGN(Queue* const queue, device_->default_queue());
    Block writable = block;
    writable.usage = Usage::kAll;
    BERTH_TRY(queue->fill({.block = writable, .offset = 0, .bytes = block.bytes, .device = device_.get()}, 0));
    return queue->finish();
  }

  const DevicePtr device_;
  const std::unique_ptr<AddressSpace> space_;
  const std::uint64_t base_;
  const std::size_t bytes_;
  const std::size_t step_;
  mutable std::mutex mutex_;
  Tlsf offsets_;
  std::vector<Step> steps_;
  std::vector<Pending> pending_;
  std::size_t mapped_ = 0;
  std::size_t used_ = 0;
  std::size_t pending_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<Segment>> make_segment(DevicePtr device, const SegmentOptions& options) {
  if (options.reserve_bytes == 0 || options.step_bytes == 0)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a segment of {} bytes in steps of {}",
                 options.reserve_bytes, options.step_bytes);
  BERTH_TRY_ASSIGN(std::unique_ptr<AddressSpace> space, make_address_space(*device));
  const std::size_t step = round_up(options.step_bytes, space->granularity());
  const std::size_t bytes = round_up(options.reserve_bytes, step);
  BERTH_TRY_ASSIGN(Tlsf offsets, Tlsf::create(bytes, 256));
  BERTH_TRY_ASSIGN(const std::uint64_t base, space->reserve(bytes));
  return std::shared_ptr<Segment>(
      std::make_shared<MappedSegment>(std::move(device), std::move(space), base, bytes, step, std::move(offsets)));
}

}  // namespace berth
