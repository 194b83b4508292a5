#include "kv/page_frames.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/memory/out_of_memory.h"
#include "memory/uses.h"

namespace berth::internal::kv_cache {

void PageFrames::Mapped::reserve(std::size_t first, std::size_t end) {
  for (std::size_t i = first / kChunk; i * kChunk < end; ++i) {
    if (chunks_[i]) continue;
    chunks_[i] = std::make_unique<std::uint32_t[]>(kChunk);
    std::fill_n(chunks_[i].get(), kChunk, kNothing);
  }
}

std::size_t PageFrames::Mapped::bytes() const noexcept {
  std::size_t bytes = sizeof *this + chunks_.capacity() * sizeof(chunks_[0]);
  for (const auto& chunk : chunks_) bytes += chunk ? kChunk * sizeof(std::uint32_t) : 0;
  return bytes;
}

Result<std::shared_ptr<PageFrames>> PageFrames::make(DevicePtr device, std::unique_ptr<AddressSpace> space,
                                                     std::size_t bytes, std::size_t count, Name label) {
  if (count >= kNothing || count > std::numeric_limits<std::size_t>::max() / 4 / bytes)
    return Error(Code::kOutOfMemory, Layer::kAllocator, "{} frames of {b} are more than there are addresses", count,
                 bytes);
  std::shared_ptr<PageFrames> pages(new PageFrames(std::move(device), std::move(space), bytes));
  Device& from = *pages->device_;
  const BlockSpec spec{.bytes = bytes * count, .label = label};
  BERTH_TRY_ASSIGN(pages->frames_, from.take_under_pressure(spec, [&]() -> Result<std::unique_ptr<Frames>> {
    BERTH_TRY_ASSIGN(Charge charge, from.charge(spec, spec.bytes));
    auto made = pages->space_->make_frames(bytes, count);
    if (!made) {
      if (made.error().code() != Code::kOutOfMemory) return made.error();
      return out_of_memory(OutOfMemory::Cause::kCapacity, from, spec, 0, spec.bytes, made.error().message());
    }
    charge.keep();
    return std::move(*made);
  }));
  pages->charged_ = spec.bytes;
  pages->label_ = label;
  return pages;
}

PageFrames::~PageFrames() {
  frames_.reset();
  if (charged_ != 0) device_->discharge(label_, charged_);
}

Result<Block> PageFrames::allocate(const BlockSpec& spec) {
  const std::size_t bytes = round_up(spec.bytes, bytes_);
  const MutexLock lock(mutex_);
  Mapped nothing(bytes / bytes_);
  BERTH_TRY_ASSIGN(const std::uint64_t address, space_->reserve(bytes));
  blocks_.emplace(address, std::move(nothing));
  Block block{.handle = address, .bytes = spec.bytes, .label = spec.label, .usage = spec.usage};
  block.flags = expected_flags(spec);
  if (space_->is_host()) block.host = reinterpret_cast<std::byte*>(address);
  return block;
}

void PageFrames::release(const Block& block, Timepoint last_use) noexcept {
  static_cast<void>(internal::finish(last_use));
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(block.handle);
  if (found == blocks_.end()) return;
  Mapped& mapped = found->second;
  // Tried twice, since nobody can be told. Addresses that stay mapped stay reserved.
  if (unmap(block.handle, mapped, 0, mapped.size()) || unmap(block.handle, mapped, 0, mapped.size()))
    space_->unreserve(block.handle, mapped.size() * bytes_);
  blocks_.erase(found);
}

BlockFlags PageFrames::expected_flags(const BlockSpec&) noexcept {
  return space_->is_host() ? BlockFlags::kHostPointer | BlockFlags::kHostTransfer : BlockFlags::kNone;
}

Result<void> PageFrames::unmap(std::uint64_t block, Mapped& mapped, std::size_t first, std::size_t end) {
  while ((first = mapped.skip(first)) < end) {
    if (mapped[first] == kNothing) {
      ++first;
      continue;
    }
    std::size_t last = first + 1;
    while (last < end && mapped[last] != kNothing) ++last;
    BERTH_TRY(space_->unmap_frames(block + first * bytes_, *frames_, last - first));
    for (; first < last; ++first) mapped.set(first, kNothing);
  }
  return {};
}

Result<void> PageFrames::show(std::uint64_t block, std::size_t at, std::size_t from, std::size_t bytes) {
  const MutexLock lock(mutex_);
  Mapped& mapped = blocks_.at(block);
  const std::size_t end = (at + bytes) / bytes_;
  std::size_t first = at / bytes_, frame = from / bytes_;
  mapped.reserve(first, end);
  while (first < end) {
    if (mapped[first] == frame) {
      ++first, ++frame;
      continue;
    }
    std::size_t count = 1;
    while (first + count < end && mapped[first + count] != frame + count) ++count;
    BERTH_TRY(unmap(block, mapped, first, first + count));
    BERTH_TRY(space_->map_frames(block + first * bytes_, *frames_, frame, count));
    for (; count > 0; --count) mapped.set(first++, static_cast<std::uint32_t>(frame++));
  }
  return {};
}

Result<void> PageFrames::hide(std::uint64_t block, std::size_t at, std::size_t bytes) {
  const MutexLock lock(mutex_);
  return unmap(block, blocks_.at(block), at / bytes_, (at + bytes) / bytes_);
}

bool PageFrames::shows(std::uint64_t block, std::size_t at, std::size_t from, std::size_t bytes) const {
  const MutexLock lock(mutex_);
  const Mapped& mapped = blocks_.at(block);
  for (std::size_t i = 0; i < bytes / bytes_; ++i)
    if (mapped[at / bytes_ + i] != from / bytes_ + i) return false;
  return true;
}

std::size_t PageFrames::bookkeeping_bytes() const {
  const MutexLock lock(mutex_);
  std::size_t bytes = sizeof *this;
  for (const auto& [address, mapped] : blocks_) bytes += mapped.bytes();
  return bytes;
}

}  // namespace berth::internal::kv_cache
