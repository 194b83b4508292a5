#include "remote/remote_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "berth/memory/out_of_memory.h"
#include "remote/member.h"
#include "remote/remote_queue.h"

namespace berth::internal::remote {
namespace {

// A handle is the number of a region, from 1, above this many bits of offset.
constexpr unsigned kOffsetBits = 44;
constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kOffsetBits) - 1;
constexpr std::uint32_t kLeaseRegion = 1;
constexpr std::uint32_t kMostRegions = (1u << (64 - kOffsetBits)) - 1;

constexpr std::uint64_t handle_of(std::uint32_t region, std::uint64_t offset) noexcept {
  return std::uint64_t{region} << kOffsetBits | offset;
}

}  // namespace

RemoteDevice::RemoteDevice(std::shared_ptr<Member> member, std::uint32_t rank, std::size_t lease_bytes)
    : Device(fmt::format("REMOTE:{}", rank), {.total_bytes = lease_bytes}),
      member_(std::move(member)),
      engine_(member_->engine()),
      rank_(rank) {}

Result<DevicePtr> RemoteDevice::open(std::shared_ptr<Member> member, std::uint32_t rank, std::size_t lease_bytes) {
  Result<RegionPtr> lease = member->lease(rank, lease_bytes);
  if (!lease && lease.error().code() == Code::kDeviceLost) return lease.error();
  const std::size_t bytes = lease ? (*lease)->bytes : 0;
  std::unique_ptr<RemoteDevice> device(new RemoteDevice(std::move(member), rank, bytes));
  device->take_lease(std::move(lease));
  return share_device(std::move(device));
}

void RemoteDevice::take_lease(Result<RegionPtr> lease) {
  auto offsets = OffsetAllocator::make(lease ? (*lease)->bytes : 0);
  if (!lease || !offsets) {
    no_lease_ = lease ? offsets.error() : lease.error();
    return;
  }
  lease_ = *std::move(lease);
  const MutexLock lock(mutex_);
  offsets_ = *std::move(offsets);
  regions_.emplace(kLeaseRegion, lease_);
}

RemoteDevice::~RemoteDevice() {
  const MutexLock lock(engine_.mutex);
  if (lease_) engine_.destroy(lease_->key);
}

std::string RemoteDevice::description() const {
  const Card& card = engine_.card(rank_);
  return fmt::format("memory of rank {} of {}{}, {} leased, by UCX {}.{}", rank_, engine_.options().ranks,
                     engine_.same_host(rank_) ? " on this machine" : " on " + card.host.substr(0, card.host.find('/')),
                     format_bytes(limits().total_bytes), card.ucx_major, card.ucx_minor);
}

BlockFlags RemoteDevice::flags_of(const Region& region) const noexcept {
  // No kHostTransfer: a memcpy would not notice that the rank is lost.
  return region.host == nullptr ? BlockFlags::kNone : BlockFlags::kHostPointer;
}

BlockFlags RemoteDevice::expected_flags(const BlockSpec&) noexcept {
  return lease_ ? flags_of(*lease_) : BlockFlags::kNone;
}

// Host memory is put from where it is.
bool RemoteDevice::reaches(const Device& other) const noexcept {
  return this == &other || other.kind() == "CPU";
}

Result<void> RemoteDevice::check_host_access(const Block& block, std::size_t, std::size_t) const {
  BERTH_TRY_ASSIGN(const Place place, find(block.handle));
  const MutexLock lock(engine_.mutex);
  return check_usable(engine_, *place.region);
}

DlpackPlace RemoteDevice::dlpack_place(const Block& block) const noexcept {
  constexpr std::int32_t kDlExternal = 12;  // memory that only its library can access
  return {.device_type = kDlExternal,
          .device_id = static_cast<std::int32_t>(rank_),
          .data = block.handle,
          .is_object = true};
}

Result<RemoteDevice::Place> RemoteDevice::find(std::uint64_t handle) const {
  const MutexLock lock(mutex_);
  const auto found = regions_.find(static_cast<std::uint32_t>(handle >> kOffsetBits));
  if (found == regions_.end() || (handle & kOffsetMask) > found->second->bytes)
    return Error(Code::kInvalidArgument, Layer::kDevice, "{} is no address of this REMOTE device", handle);
  return Place{found->second, handle & kOffsetMask};
}

Result<RemoteDevice::Place> RemoteDevice::find(const Window& window) const {
  BERTH_TRY_ASSIGN(Place place, find(window.block.handle));
  place.offset += window.offset;
  return place;
}

Result<Block> RemoteDevice::import_block(const ForeignMemory& memory) {
  BERTH_TRY_ASSIGN(const Place place, find(memory.address));
  const Region& region = *place.region;
  if (memory.bytes > region.bytes - place.offset)
    return Error(Code::kInvalidArgument, Layer::kDevice, "{} bytes to import at {} reach past the region's {} bytes",
                 memory.bytes, place.offset, region.bytes);
  const bool read_only = memory.read_only || region.access == Access::kRead;
  return Block{
      .handle = memory.address,
      .host = region.host == nullptr ? nullptr : region.host + place.offset,
      .bytes = memory.bytes,
      .flags = flags_of(region) | BlockFlags::kForeign | (read_only ? BlockFlags::kReadOnly : BlockFlags::kNone),
      .usage = region.access == Access::kWrite ? Usage::kCopyTarget : Usage::kDefault};
}

Result<std::uint64_t> RemoteDevice::add_region(RegionPtr region) {
  const MutexLock lock(mutex_);
  std::uint32_t number = regions_.empty() ? kLeaseRegion + 1 : std::max(kLeaseRegion, regions_.rbegin()->first) + 1;
  if (number > kMostRegions || region->bytes > kOffsetMask) {
    for (number = kLeaseRegion + 1; regions_.contains(number) && number < kMostRegions;) ++number;
    if (regions_.contains(number) || region->bytes > kOffsetMask)
      return Error(Code::kOutOfMemory, Layer::kDevice, "{} windows of one rank are imported; drop some",
                   regions_.size());
  }
  regions_.emplace(number, std::move(region));
  return handle_of(number, 0);
}

void RemoteDevice::remove_region(std::uint64_t handle) noexcept {
  RegionPtr region;
  {
    const MutexLock lock(mutex_);
    const auto found = regions_.find(static_cast<std::uint32_t>(handle >> kOffsetBits));
    if (found == regions_.end()) return;
    region = std::move(found->second);
    regions_.erase(found);
  }
  member_->forget(*region);
}

Result<Block> RemoteDevice::allocate_block(const BlockSpec& spec) {
  if (!lease_) return *no_lease_;
  if (spec.host == HostAccess::kRequired && lease_->host == nullptr)
    return Error(Code::kUnsupported, Layer::kDevice, "memory of rank {} has no host pointer here", rank_);
  {
    const MutexLock lock(engine_.mutex);
    BERTH_TRY(engine_.check(rank_));
  }
  std::uint64_t offset = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = offsets_->allocate(spec.bytes, spec.alignment);
    if (!found) return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec);
    offset = *found;
  }
  const Block block{.handle = handle_of(kLeaseRegion, offset),
                    .host = lease_->host == nullptr ? nullptr : lease_->host + offset,
                    .bytes = spec.bytes,
                    .flags = flags_of(*lease_)};
  if (spec.zero)
    if (auto zeroed = fill(engine_, *lease_, offset, spec.bytes, 0); !zeroed) {
      free_block(block, {});
      return zeroed.error();
    }
  return block;
}

void RemoteDevice::free_block(const Block& block, Timepoint) noexcept {
  const MutexLock lock(mutex_);
  // Cannot fail: the block came from allocate_block.
  static_cast<void>(offsets_->release(block.handle & kOffsetMask));
}

bool RemoteDevice::frees_in_order() const noexcept {
  const MutexLock lock(engine_.mutex);
  return engine_.is_lost(rank_);
}

Result<std::unique_ptr<Queue>> RemoteDevice::create_queue() {
  return std::unique_ptr<Queue>(std::make_unique<RemoteQueue>(*this));
}

}  // namespace berth::internal::remote
