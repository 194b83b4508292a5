#include "berth/alloc/shareable.h"

#include <map>
#include <string_view>
#include <utility>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/uses.h"
#include "memory/zero_block.h"

namespace berth {

using namespace internal;

namespace {

class ShareableMemory final : public Allocator {
 public:
  ShareableMemory(DevicePtr device, std::unique_ptr<AddressSpace> space)
      : device_(std::move(device)), space_(std::move(space)) {}

  ~ShareableMemory() override { free_reached(true); }

  Result<Block> allocate(const BlockSpec& spec) override {
    BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
    if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
    if (spec.alignment > space_->granularity() || (spec.host == HostAccess::kRequired && !space_->is_host()))
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "shareable memory of this device is aligned to at most {}, and has a host pointer only on CPU",
                   space_->granularity());
    if (spec.bytes > SIZE_MAX / 4) return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec);
    const std::size_t bytes = round_up(spec.bytes, space_->granularity());
    trim(0);
    BERTH_TRY_ASSIGN(Entry entry, device_->take_under_pressure(spec, [&] { return take(spec, bytes); }));
    const Block block{.handle = entry.mapping.address,
                      .host = space_->is_host() ? reinterpret_cast<std::byte*>(entry.mapping.address) : nullptr,
                      .bytes = spec.bytes,
                      .label = spec.label,
                      .flags = expected_flags(spec),
                      .usage = spec.usage};
    try {
      // New host pages are zero already.
      if (spec.zero && !space_->is_host())
        if (auto zeroed = zero_block(*device_, block, block.bytes); !zeroed) {
          free(entry);
          return zeroed.error();
        }
      const MutexLock lock(mutex_);
      entries_.emplace(block.handle, std::move(entry));
    } catch (...) {  // no memory for the entry
      free(entry);
      throw;
    }
    return block;
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    if (block.bytes == 0) return;
    const bool reached = is_reached(last_use);
    const MutexLock lock(mutex_);
    const auto found = entries_.find(block.handle);
    if (found == entries_.end() || found->second.released) return;
    if (reached) {
      free(found->second);
      entries_.erase(found);
      return;
    }
    found->second.released = true;
    found->second.last_use = last_use;
    ++waiting_;
  }

  Result<SharedMemory> share(const Block& block, SharedAccess access) override {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(block.handle);
    if (found == entries_.end() || found->second.released)
      return Error(Code::kNotOwned, Layer::kAllocator, "a block of {} bytes was not allocated here", block.bytes);
    const SharedMapping& mapping = found->second.mapping;
    BERTH_TRY_ASSIGN(Descriptor copy, space_->copy_descriptor(mapping.descriptor, access));
    return SharedMemory{.descriptor = std::move(copy), .memory_bytes = mapping.bytes, .offset = 0};
  }

  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "shareable"; }
  BlockFlags expected_flags(const BlockSpec&) noexcept override {
    return space_->is_host() ? BlockFlags::kHostPointer | BlockFlags::kHostTransfer : BlockFlags::kNone;
  }
  std::size_t trim(std::size_t) noexcept override {
    const MutexLock lock(mutex_);
    return free_reached(false);
  }
  void explain(OutOfMemory& report) const override { device_->explain(report); }

 private:
  struct Entry {
    SharedMapping mapping{};
    Name label{};
    bool released = false;
    Timepoint last_use{};
  };

  Result<Entry> take(const BlockSpec& spec, std::size_t bytes) {
    BERTH_TRY_ASSIGN(Charge charge, device_->charge(spec, bytes));
    auto mapped = space_->map_shareable(bytes);
    if (!mapped) {
      if (mapped.error().code() != Code::kOutOfMemory) return mapped.error();
      return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec, 0, bytes, mapped.error().message());
    }
    charge.keep();
    return Entry{.mapping = std::move(*mapped), .label = spec.label};
  }

  void free(const Entry& entry) noexcept {
    space_->unmap_shared(entry.mapping.address, entry.mapping.bytes);
    device_->discharge(entry.label, entry.mapping.bytes);
  }

  // Frees released blocks whose last use is reached, or all of them after waiting. Returns the bytes.
  std::size_t free_reached(bool all) noexcept BERTH_REQUIRES(mutex_) {
    std::size_t freed = 0;
    for (auto at = entries_.begin(); waiting_ > 0 && at != entries_.end();) {
      Entry& entry = at->second;
      if (!entry.released || (!all && !is_reached(entry.last_use))) {
        ++at;
        continue;
      }
      if (all) static_cast<void>(internal::finish(entry.last_use));
      freed += entry.mapping.bytes;
      free(entry);
      --waiting_;
      at = entries_.erase(at);
    }
    return freed;
  }

  const DevicePtr device_;
  const std::unique_ptr<AddressSpace> space_;
  Mutex mutex_;
  std::map<std::uint64_t, Entry> entries_ BERTH_GUARDED_BY(mutex_);  // by address
  std::size_t waiting_ BERTH_GUARDED_BY(mutex_) = 0;                 // released, but their last use is not reached
};

}  // namespace

Result<AllocatorPtr> make_shareable(DevicePtr device) {
  if (device == nullptr) return Error(Code::kInvalidArgument, Layer::kAllocator, "shareable memory needs a device");
  BERTH_TRY_ASSIGN(std::unique_ptr<AddressSpace> space, device->make_address_space());
  return AllocatorPtr(std::make_shared<ShareableMemory>(std::move(device), std::move(space)));
}

}  // namespace berth
