#include "alloc/slab_memory.h"

#include <algorithm>
#include <utility>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/uses.h"
#include "memory/zero_block.h"

namespace berth::internal {
namespace {

// A buffer above this fraction of a slab has an object of its own: slabs then never lose more than this to buffers that
// do not fit their end.
constexpr std::size_t kPartsInASlab = 8;
constexpr std::size_t kLeastGranule = 256;

std::size_t usable_slab(const Device& device, std::size_t wanted) {
  const std::size_t most = device.limits().max_block_bytes;
  return most == 0 ? wanted : std::min(wanted, most);
}

}  // namespace

SlabMemory::SlabMemory(DevicePtr device, std::size_t most_bytes, std::size_t slab_bytes)
    : device_(std::move(device)),
      most_bytes_(most_bytes),
      slab_bytes_(usable_slab(*device_, slab_bytes)),
      granule_(std::max(kLeastGranule, device_->limits().binding_alignment)) {}

SlabMemory::~SlabMemory() {
  for (const Pending& one : pending_) static_cast<void>(internal::finish(one.last_use));
  for (const auto& [number, slab] : slabs_) device_->release(slab.block);
}

Result<Block> SlabMemory::allocate(const BlockSpec& spec) {
  BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
  if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
  BERTH_TRY_ASSIGN(const Block block, take_object(spec));
  const MutexLock lock(mutex_);
  whole_bytes_ += block.bytes;
  ++whole_count_;
  return block;
}

Result<Block> SlabMemory::allocate_movable(const BlockSpec& spec, std::uint64_t& start) {
  start = 0;
  BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
  if (spec.alignment > granule_) return allocate(spec);
  std::optional<std::uint32_t> key;
  if (spec.bytes > slab_bytes_ / kPartsInASlab) {
    auto whole = allocate(spec);
    if (whole || whole.error().code() != Code::kOutOfMemory) return whole;
    // The slabs may have room that the device has not.
    const MutexLock lock(mutex_);
    key = take_part(spec);
    if (!key) return whole;
  } else {
    const MutexLock lock(mutex_);
    free_reached();
    key = take_part(spec);
  }
  while (!key) {
    if (auto added = add_slab(spec); !added) {
      if (added.error().code() != Code::kOutOfMemory) return added.error();
      return allocate(spec);  // memory is short: the request alone may still fit
    }
    // Another thread may have filled the slab already.
    const MutexLock lock(mutex_);
    key = take_part(spec);
  }
  Block block{.bytes = spec.bytes, .label = spec.label, .usage = spec.usage, .key = *key};
  {
    const MutexLock lock(mutex_);
    const Part& part = parts_[*key];
    block.handle = part.slab->block.handle;
    block.host = part.slab->block.host;
    block.flags = part.slab->block.flags | kPart;
    start = part.offset;
  }
  if (!spec.zero) return block;
  if (auto zeroed = zero_block(*device_, block, spec.bytes, start); !zeroed) {
    release(block, {});
    return zeroed.error();
  }
  return block;
}

bool SlabMemory::enlist(const Block& block, std::size_t alignment, MovableOwner& owner) noexcept {
  const MutexLock lock(mutex_);
  if (!is_part(block)) return false;
  parts_[block.key].alignment = std::max(alignment, granule_);
  parts_[block.key].owner = &owner;
  return true;
}

// A slab is an object of its own, so no other block has its handle.
bool SlabMemory::is_part(const Block& block) const noexcept {
  return block.key < parts_.size() && parts_[block.key].slab != nullptr &&
         parts_[block.key].slab->block.handle == block.handle;
}

void SlabMemory::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes == 0) return;
  while (true) {
    try {
      const MutexLock lock(mutex_);
      if (!is_part(block)) {
        held_bytes_ -= block.bytes;
        whole_bytes_ -= block.bytes;
        --whole_count_;
        break;
      }
      Part& part = parts_[block.key];
      part.owner = nullptr;
      if (is_reached(last_use)) return free_part(block.key);
      pending_.push_back({block.key, last_use});
      pending_bytes_ += part.bytes;
      return;
    } catch (...) {
      // No memory to store the pending free. Waiting is slow, but always correct.
      static_cast<void>(internal::finish(last_use));
      last_use = {};
    }
  }
  device_->release(block, last_use);
}

Result<Block> SlabMemory::take_object(const BlockSpec& spec) {
  for (const bool again : {false, true}) {
    bool fits = false;
    {
      const MutexLock lock(mutex_);
      fits = spec.bytes <= most_bytes_ && held_bytes_ <= most_bytes_ - spec.bytes;
      if (fits) held_bytes_ += spec.bytes;
    }
    if (fits) {
      auto block = device_->allocate(spec);
      const MutexLock lock(mutex_);
      held_bytes_ -= spec.bytes;
      if (block) {
        held_bytes_ += block->bytes;
        return block;
      }
      if (again || block.error().code() != Code::kOutOfMemory) return block;
    }
    if (!again) static_cast<void>(give_back_empty(0));
  }
  return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec, 0, 0,
                       "GrowableOptions::reserve_bytes are in use; raise it");
}

Result<void> SlabMemory::add_slab(const BlockSpec& spec) {
  BERTH_TRY_ASSIGN(OffsetAllocator offsets, OffsetAllocator::make(slab_bytes_, granule_));
  BERTH_TRY_ASSIGN(
      const Block block,
      take_object(
          {.bytes = slab_bytes_, .alignment = granule_, .usage = Usage::kAll, .host = spec.host, .label = spec.label}));
  const MutexLock lock(mutex_);
  try {
    ++last_number_;
    slabs_.emplace(last_number_, Slab{last_number_, block, spec.host, std::move(offsets)});
  } catch (...) {
    held_bytes_ -= block.bytes;
    device_->release(block);
    throw;
  }
  return {};
}

std::optional<std::uint32_t> SlabMemory::take_part(const BlockSpec& spec) {
  if (free_keys_.empty()) {
    if (free_keys_.capacity() <= parts_.size()) free_keys_.reserve(2 * parts_.size() + 1);
    parts_.emplace_back();
    free_keys_.push_back(static_cast<std::uint32_t>(parts_.size() - 1));
  }
  const std::uint32_t key = free_keys_.back();
  for (auto& [number, slab] : slabs_) {
    if (slab.host != spec.host) continue;
    const auto offset = slab.offsets.allocate(spec.bytes, spec.alignment);
    if (!offset) continue;
    try {
      slab.parts.emplace(*offset, key);
    } catch (...) {
      static_cast<void>(slab.offsets.release(*offset));
      throw;
    }
    free_keys_.pop_back();
    const auto bytes = static_cast<std::size_t>(*slab.offsets.size_of(*offset));
    parts_[key] = {.slab = &slab, .offset = *offset, .bytes = bytes, .alignment = granule_};
    part_bytes_ += bytes;
    return key;
  }
  return std::nullopt;
}

void SlabMemory::free_part(std::uint32_t key) noexcept {
  Part& part = parts_[key];
  static_cast<void>(part.slab->offsets.release(part.offset));  // and with it what an unfinished move has taken
  part.slab->parts.erase(part.offset);
  part_bytes_ -= part.bytes;
  part = {};
  free_keys_.push_back(key);
}

void SlabMemory::free_reached() noexcept {
  auto kept = pending_.begin();
  for (const Pending& one : pending_) {
    if (!is_reached(one.last_use)) {
      *kept++ = one;
      continue;
    }
    pending_bytes_ -= parts_[one.key].bytes;
    free_part(one.key);
  }
  pending_.erase(kept, pending_.end());
}

std::size_t SlabMemory::give_back_empty(std::size_t keep_bytes) noexcept {
  std::size_t given = 0;
  while (true) {
    Block block;
    {
      const MutexLock lock(mutex_);
      free_reached();
      std::size_t empty_bytes = 0;
      auto last = slabs_.end();
      for (auto one = slabs_.begin(); one != slabs_.end(); ++one) {
        if (one->second.offsets.allocations() != 0) continue;
        empty_bytes += one->second.block.bytes;
        last = one;
      }
      if (empty_bytes <= keep_bytes) return given;
      block = last->second.block;
      slabs_.erase(last);
      held_bytes_ -= block.bytes;
    }
    device_->release(block);  // outside the lock: the driver is called
    given += block.bytes;
  }
}

std::size_t SlabMemory::trim(std::size_t keep_bytes) noexcept {
  return give_back_empty(keep_bytes);
}

void SlabMemory::explain(OutOfMemory& report) const {
  device_->explain(report);
  const MutexLock lock(mutex_);
  report.live_bytes = part_bytes_ + whole_bytes_ - pending_bytes_;
  report.live_count = parts_.size() - free_keys_.size() - pending_.size() + whole_count_;
  report.pending_bytes += pending_bytes_;
  for (const auto& [number, slab] : slabs_)
    report.largest_free = std::max<std::size_t>(report.largest_free, slab.offsets.counters().largest_free);
}

GrowableCounters SlabMemory::counters() const {
  const MutexLock lock(mutex_);
  return {most_bytes_, held_bytes_, part_bytes_ + whole_bytes_, pending_bytes_};
}

}  // namespace berth::internal
