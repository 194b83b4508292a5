#include "berth/tensor/evictable.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <vector>

#include "base/round_up.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/uses.h"
#include "memory/zero_block.h"
#include "tensor/spill_file.h"

namespace berth {

using namespace internal;

namespace {

// Contents are copied between device and file in pieces of this size.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

class PagedMemory final : public EvictableMemory {
 public:
  PagedMemory(DevicePtr device, std::unique_ptr<AddressSpace> space, EvictableOptions options)
      : device_(std::move(device)), space_(std::move(space)), spill_(std::move(options.folder)) {}

  ~PagedMemory() override { free_reached(true); }

  Result<Block> allocate(const BlockSpec& spec) override {
    BERTH_TRY(check_alignment(spec.alignment, Layer::kAllocator));
    if (spec.bytes == 0) return Block{.label = spec.label, .usage = spec.usage};
    if (spec.alignment > space_->granularity() || (spec.host == HostAccess::kRequired && !space_->is_host()))
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "evictable memory of this device is aligned to at most {}, and has a host pointer only on CPU",
                   space_->granularity());
    if (spec.bytes > SIZE_MAX / 2) return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec);
    const std::size_t pages = round_up(spec.bytes, space_->granularity());
    trim(0);
    BERTH_TRY_ASSIGN(const std::uint64_t address, space_->reserve(pages));
    Entry entry;
    entry.block = {.handle = address, .bytes = spec.bytes, .label = spec.label, .usage = spec.usage};
    entry.block.flags = expected_flags(spec);
    if (space_->is_host()) entry.block.host = reinterpret_cast<std::byte*>(address);
    entry.tag = spec.tag;
    entry.pages = pages;
    const auto take = [&]() -> Result<void> {
      return give_memory(entry, spec, [&] {
        // New host pages are zero already.
        return spec.zero && !space_->is_host() ? zero_block(*device_, entry.block, entry.block.bytes) : Result<void>();
      });
    };
    const auto give_up = [&] {
      if (entry.mapped && space_->unmap(address, pages)) {
        entry.mapped = false;
        device_->discharge(spec.label, pages);
      }
      if (!entry.mapped) space_->unreserve(address, pages);
    };
    try {
      if (auto taken = device_->take_under_pressure(spec, take); !taken) {
        give_up();
        return taken.error();
      }
      const Block block = entry.block;
      const MutexLock lock(mutex_);
      entries_.emplace(address, entry);
      resident_ += pages;
      return block;
    } catch (...) {  // a callback of the user threw, or there is no memory for the entry
      give_up();
      throw;
    }
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    if (block.bytes == 0) return;
    const bool reached = is_reached(last_use);
    const MutexLock lock(mutex_);
    const auto found = entries_.find(block.handle);
    if (found == entries_.end()) return;
    found->second.released = true;
    found->second.last_use = last_use;
    if (reached)
      free(found);
    else
      ++waiting_;
  }

  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "evictable"; }
  BlockFlags expected_flags(const BlockSpec&) noexcept override {
    return BlockFlags::kEvictable |
           (space_->is_host() ? BlockFlags::kHostPointer | BlockFlags::kHostTransfer : BlockFlags::kNone);
  }
  std::size_t trim(std::size_t) noexcept override {
    const MutexLock lock(mutex_);
    const std::size_t before = resident_;
    free_reached(false);
    return before - resident_;
  }
  void explain(OutOfMemory& report) const override { device_->explain(report); }

  Result<std::size_t> evict(Name tag, Contents contents) override {
    if (contents == Contents::kToHost && space_->is_host())
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "host memory that is kept in host memory frees nothing; use Contents::kToFile or kDrop");
    return evict(tag, contents != Contents::kDrop, [&](Entry& entry) {
      mutex_.assert_held();
      return contents == Contents::kToHost ? save_on_host(entry) : save_in_file(entry);
    });
  }

  Result<std::size_t> evict(Name tag, const AllocatorPtr& target) override {
    if (target == nullptr) return Error(Code::kInvalidArgument, Layer::kAllocator, "an eviction to no allocator");
    if (&target->device() == device_.get())
      return Error(Code::kUnsupported, Layer::kAllocator,
                   "contents that stay on the same device free nothing; name an allocator of another device");
    return evict(tag, true, [&](Entry& entry) {
      mutex_.assert_held();
      return save_elsewhere(entry, target);
    });
  }

  Result<std::size_t> wake(Name tag) override {
    std::size_t back = 0;
    BlockSpec refused;
    // The lock is not held throughout: the pressure callback may evict other buffers of this object.
    BERTH_TRY(device_->take_under_pressure(refused, [&] { return wake(tag, back, refused); }));
    return back;
  }

  Result<void> back_with(const Buffer& buffer, Buffer file) override {
    const MutexLock lock(mutex_);
    BERTH_TRY_ASSIGN(Entry* const entry, entry_of(buffer));
    if (buffer.byte_offset() != 0 || buffer.size() != buffer.total_size())
      return Error(Code::kInvalidArgument, Layer::kAllocator,
                   "a view of {} bytes cannot be backed; back the whole buffer of {} bytes", buffer.size(),
                   buffer.total_size());
    if (file.size() != buffer.size())
      return Error(Code::kSizeMismatch, Layer::kAllocator, "{} bytes of a file to back a buffer of {}", file.size(),
                   buffer.size());
    BERTH_TRY(file.ensure_allocated());
    entry->source = std::move(file);
    return {};
  }

  Result<bool> is_evicted(const Buffer& buffer) const override {
    const MutexLock lock(mutex_);
    BERTH_TRY_ASSIGN(const Entry* const entry, const_cast<PagedMemory*>(this)->entry_of(buffer));
    return entry->evicted;
  }

  EvictableCounters counters() const override {
    const MutexLock lock(mutex_);
    return {resident_, evicted_, spilled_};
  }

 private:
  struct Entry {
    Block block;
    Name tag;
    std::size_t pages = 0;
    bool mapped = false;   // backed by memory
    bool evicted = false;  // its memory was evicted
    bool kept = false;     // wake() restores the contents
    bool released = false;
    Timepoint last_use;
    std::optional<Buffer> source;          // the same bytes, elsewhere
    std::vector<std::byte> on_host;        // or here
    std::optional<std::uint64_t> in_file;  // or here
    std::optional<Buffer> elsewhere;       // or in memory of another device
  };
  using Entries = std::map<std::uint64_t, Entry>;

  // Evicts entries; `save(entry)` keeps the contents of those that are not backed.
  template <class Save>
  Result<std::size_t> evict(Name tag, bool keep, const Save& save) {
    BERTH_TRY(device_->synchronize());
    const MutexLock lock(mutex_);
    free_reached(false);
    std::size_t given = 0;
    for (auto& [address, entry] : entries_) {
      if (entry.evicted || entry.released || (tag && entry.tag != tag)) continue;
      if (keep && !entry.source) BERTH_TRY(save(entry));
      if (auto unmapped = space_->unmap(address, entry.pages); !unmapped) {
        forget(entry);
        return unmapped.error();
      }
      device_->discharge(entry.block.label, entry.pages);
      entry.mapped = false;
      entry.evicted = true;
      entry.kept = keep;
      resident_ -= entry.pages;
      evicted_ += entry.pages;
      given += entry.pages;
    }
    return given;
  }

  Result<Entry*> entry_of(const Buffer& buffer) BERTH_REQUIRES(mutex_) {
    if (buffer.is_allocated() && buffer.total_size() > 0)
      if (const auto found = entries_.find(buffer.native_handle()); found != entries_.end()) return &found->second;
    return Error(Code::kNotOwned, Layer::kAllocator, "a buffer of {} bytes was not allocated here", buffer.size());
  }

  // Maps memory for an entry and calls `fill()` for its contents. A failed call unmaps it.
  template <class Fill>
  Result<void> give_memory(Entry& entry, const BlockSpec& spec, const Fill& fill) {
    if (!entry.mapped) {
      BERTH_TRY_ASSIGN(Charge charge, device_->charge(spec, entry.pages));
      if (auto mapped = space_->map(entry.block.handle, entry.pages); !mapped) {
        if (mapped.error().code() != Code::kOutOfMemory) return mapped;
        return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec, 0, entry.pages, mapped.error().message());
      }
      entry.mapped = true;
      charge.keep();
    }
    auto filled = fill();
    if (!filled && space_->unmap(entry.block.handle, entry.pages)) {
      entry.mapped = false;
      device_->discharge(entry.block.label, entry.pages);
    }
    return filled;
  }

  // Wakes entries that are still evicted. Adds their bytes to `back`, and sets `refused` to the request that failed.
  Result<void> wake(Name tag, std::size_t& back, BlockSpec& refused) {
    const MutexLock lock(mutex_);
    free_reached(false);
    for (auto& [address, entry] : entries_) {
      if (!entry.evicted || entry.released || (tag && entry.tag != tag)) continue;
      refused = {.bytes = entry.block.bytes, .tag = entry.tag, .label = entry.block.label};
      BERTH_TRY(give_memory(entry, refused, [&, &one = entry] {
        mutex_.assert_held();
        return restore(one);
      }));
      forget(entry);
      entry.evicted = false;
      entry.kept = false;
      resident_ += entry.pages;
      evicted_ -= entry.pages;
      back += entry.pages;
    }
    return {};
  }

  Window window(const Entry& entry, std::size_t offset, std::size_t bytes) const {
    Block block = entry.block;
    block.usage = Usage::kAll;
    return {.block = block, .offset = offset, .bytes = bytes, .device = device_.get()};
  }

  // These run under the lock. What the queue has kept may be memory of this object, whose release needs the lock.
  Result<void> read(const Entry& entry, std::size_t offset, std::span<std::byte> target) {
    BERTH_TRY_ASSIGN(Queue* const queue, device_->default_queue());
    BERTH_TRY(queue->read(window(entry, offset, target.size()), target));
    return internal::finish_only(*queue);
  }

  Result<void> write(const Entry& entry, std::size_t offset, std::span<const std::byte> source) {
    BERTH_TRY_ASSIGN(Queue* const queue, device_->default_queue());
    BERTH_TRY(queue->write(window(entry, offset, source.size()), source));
    return internal::finish_only(*queue);
  }

  // These save the contents of an entry. A failed call saves nothing.
  Result<void> save_on_host(Entry& entry) BERTH_REQUIRES(mutex_) {
    const std::size_t bytes = entry.block.bytes;
    try {
      entry.on_host.resize(bytes);
    } catch (const std::bad_alloc&) {
      return Error(Code::kOutOfMemory, Layer::kAllocator, "host memory cannot hold the {b} to be evicted; use kToFile",
                   bytes);
    }
    spilled_ += bytes;
    auto saved = read(entry, 0, entry.on_host);
    if (!saved) forget(entry);
    return saved;
  }

  Result<void> save_in_file(Entry& entry) BERTH_REQUIRES(mutex_) {
    BERTH_TRY_ASSIGN(entry.in_file, spill_.reserve(entry.block.bytes));
    spilled_ += entry.block.bytes;
    auto saved = each_piece(entry, [&](std::size_t at, std::span<std::byte> piece, bool mapped) -> Result<void> {
      mutex_.assert_held();
      if (!mapped) BERTH_TRY(read(entry, at, piece));
      return spill_.write(*entry.in_file + at, piece);
    });
    if (!saved) forget(entry);
    return saved;
  }

  Result<void> save_elsewhere(Entry& entry, const AllocatorPtr& target) BERTH_REQUIRES(mutex_) {
    const std::size_t bytes = entry.block.bytes;
    BERTH_TRY_ASSIGN(entry.elsewhere,
                     Buffer::allocate(target, DType::kU8, {bytes}, {.label = entry.block.label, .tag = entry.tag}));
    spilled_ += bytes;
    auto saved = each_piece(entry, [&](std::size_t at, std::span<std::byte> piece, bool mapped) -> Result<void> {
      if (!mapped) BERTH_TRY(read(entry, at, piece));
      BERTH_TRY_ASSIGN(const Buffer part, entry.elsewhere->view(at, piece.size()));
      return part.copyin(piece);
    });
    if (!saved) forget(entry);
    return saved;
  }

  Result<void> restore(Entry& entry) BERTH_REQUIRES(mutex_) {
    if (!entry.kept) return {};
    if (!entry.on_host.empty()) return write(entry, 0, entry.on_host);
    return each_piece(entry, [&](std::size_t at, std::span<std::byte> piece, bool mapped) -> Result<void> {
      mutex_.assert_held();
      if (entry.in_file) {
        BERTH_TRY(spill_.read(*entry.in_file + at, piece));
      } else {
        const Buffer& saved = entry.elsewhere ? *entry.elsewhere : *entry.source;
        BERTH_TRY_ASSIGN(const Buffer part, saved.view(at, piece.size()));
        BERTH_TRY(part.copyout(piece));
      }
      return mapped ? Result<void>() : write(entry, at, piece);
    });
  }

  // Calls `use(offset, bytes, mapped)` over the contents: in place if the host can access them (mapped), otherwise in
  // pieces.
  template <class Use>
  Result<void> each_piece(const Entry& entry, const Use& use) {
    const std::size_t bytes = entry.block.bytes;
    if (space_->is_host()) return use(0, std::span(entry.block.host, bytes), true);
    std::vector<std::byte> piece(std::min(bytes, kPieceBytes));
    for (std::size_t at = 0; at < bytes; at += piece.size())
      BERTH_TRY(use(at, std::span(piece).first(std::min(piece.size(), bytes - at)), false));
    return {};
  }

  // Discards the saved contents.
  void forget(Entry& entry) noexcept BERTH_REQUIRES(mutex_) {
    if (!entry.on_host.empty()) {
      spilled_ -= entry.block.bytes;
      std::vector<std::byte>().swap(entry.on_host);
    }
    if (entry.in_file) {
      spilled_ -= entry.block.bytes;
      spill_.give_up(entry.block.bytes);
      entry.in_file.reset();
    }
    if (entry.elsewhere) {
      spilled_ -= entry.block.bytes;
      entry.elsewhere.reset();
    }
  }

  Entries::iterator free(Entries::iterator at) noexcept BERTH_REQUIRES(mutex_) {
    Entry& entry = at->second;
    forget(entry);
    const bool empty = !entry.mapped || space_->unmap(at->first, entry.pages);
    if (entry.mapped) device_->discharge(entry.block.label, entry.pages);
    (entry.evicted ? evicted_ : resident_) -= entry.pages;
    if (empty) space_->unreserve(at->first, entry.pages);
    return entries_.erase(at);
  }

  void free_reached(bool all) noexcept BERTH_REQUIRES(mutex_) {
    if (waiting_ == 0) return;
    for (auto at = entries_.begin(); at != entries_.end();) {
      if (!at->second.released || (!all && !is_reached(at->second.last_use))) {
        ++at;
        continue;
      }
      if (all) static_cast<void>(internal::finish(at->second.last_use));
      --waiting_;
      at = free(at);
    }
  }

  const DevicePtr device_;
  const std::unique_ptr<AddressSpace> space_;
  mutable Mutex mutex_;
  SpillFile spill_ BERTH_GUARDED_BY(mutex_);
  Entries entries_ BERTH_GUARDED_BY(mutex_);  // by address
  std::size_t waiting_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t resident_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t evicted_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t spilled_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::shared_ptr<EvictableMemory>> make_evictable(DevicePtr device, EvictableOptions options) {
  if (device == nullptr) return Error(Code::kInvalidArgument, Layer::kAllocator, "evictable memory needs a device");
  BERTH_TRY_ASSIGN(std::unique_ptr<AddressSpace> space, device->make_address_space());
  return std::shared_ptr<EvictableMemory>(
      std::make_shared<PagedMemory>(std::move(device), std::move(space), std::move(options)));
}

}  // namespace berth
