#include "berth/memory/device.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "berth/memory/out_of_memory.h"
#include "memory/check_alignment.h"
#include "memory/leak_tracking.h"
#include "memory/uses.h"

namespace berth {

using namespace internal;

DevicePtr share_device(std::unique_ptr<Device> device) {
  return DevicePtr(device.release(), [](Device* last) {
    last->destroy();
    delete last;
  });
}

BlockFlags Allocator::expected_flags(const BlockSpec& spec) noexcept {
  return device().expected_flags(spec);
}

BlockFlags Device::expected_flags(const BlockSpec&) noexcept {
  return BlockFlags::kHostPointer | BlockFlags::kHostTransfer;
}

Device::Device(std::string name, DeviceLimits limits) : name_(std::move(name)), limits_(limits) {}

Device::~Device() = default;

int Device::ordinal() const noexcept {
  int number = 0;
  const std::size_t colon = name_.find(':');
  if (colon != std::string::npos) std::from_chars(name_.data() + colon + 1, name_.data() + name_.size(), number);
  return number;
}

DeviceCounters Device::counters() const noexcept {
  DeviceCounters result{accounting_.counters()};
  result.pending_bytes = pending_bytes_.load(std::memory_order_relaxed);
  result.foreign_bytes = foreign_bytes_.load(std::memory_order_relaxed);
  result.foreign_count = foreign_count_.load(std::memory_order_relaxed);
  return result;
}

void Device::count_foreign(std::size_t bytes, int sign) noexcept {
  // Unsigned arithmetic wraps, so adding the negated value subtracts.
  const std::size_t factor = sign < 0 ? ~std::size_t{0} : std::size_t{1};
  foreign_bytes_.fetch_add(bytes * factor, std::memory_order_relaxed);
  foreign_count_.fetch_add(factor, std::memory_order_relaxed);
}

void Device::on_pressure(PressureCallback callback) {
  auto shared = callback ? std::make_shared<const PressureCallback>(std::move(callback)) : nullptr;
  const MutexLock lock(mutex_);
  pressure_ = std::move(shared);
}

bool Device::relieve(const BlockSpec& spec) {
  std::shared_ptr<const PressureCallback> callback;
  {
    const MutexLock lock(mutex_);
    callback = pressure_;
  }
  return callback != nullptr && (*callback)(spec);
}

Result<void> Device::reserve(const BlockSpec& spec, std::size_t bytes) {
  if (accounting_.reserve(bytes)) return {};
  const std::size_t budget = accounting_.limit();
  const std::size_t live = accounting_.live_bytes();
  const std::size_t over = bytes > budget ? bytes : live + bytes > budget ? live + bytes - budget : 0;
  const bool waits = over <= pending_bytes_.load(std::memory_order_relaxed);
  return out_of_memory(waits ? OutOfMemory::Cause::kPendingFrees : OutOfMemory::Cause::kBudget, *this, spec, budget,
                       bytes);
}

Result<Block> Device::try_allocate(const BlockSpec& spec) {
  BERTH_TRY(reserve(spec, spec.bytes));
  Result<Block> block = Block();
  try {
    block = allocate_block(spec);
  } catch (...) {
    accounting_.cancel(spec.bytes);
    throw;
  }
  if (!block) {
    accounting_.cancel(spec.bytes);
    // The report is built here, when the bytes of the failed request no longer count as live.
    if (block.error().code() != Code::kOutOfMemory) return block;
    const OutOfMemory* report = block.error().out_of_memory();
    if (report != nullptr && report->cause != OutOfMemory::Cause::kCapacity) return block;
    return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec, 0, 0,
                         report == nullptr ? block.error().message() : "");
  }
  // The device may have returned more than was requested. The block exists, so the budget cannot refuse it any more.
  if (block->bytes > spec.bytes) accounting_.add_reserved(block->bytes - spec.bytes);
  return block;
}

Result<Block> Device::allocate(const BlockSpec& spec) {
  BERTH_TRY(check_alignment(spec.alignment, Layer::kDevice));
  if (spec.bytes == 0) return Block{.label = spec.label, .flags = BlockFlags::kNone, .usage = spec.usage};
  if (limits_.max_block_bytes > 0 && spec.bytes > limits_.max_block_bytes)
    return Error(Code::kOutOfMemory, Layer::kDevice,
                 "{} bytes were requested, and one block of this device holds at most {}; split the request",
                 spec.bytes, limits_.max_block_bytes);
  free_reached(false);
  auto block = take_under_pressure(spec, [&] { return try_allocate(spec); });
  if (!block) return block;
  block->label = spec.label;
  block->usage = spec.usage;
  accounting_.add(block->label, block->bytes);
  if (Residency* set = residency()) set->add(*block);
  return block;
}

void Device::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes == 0) return;
  if (frees_in_order() || is_reached(last_use)) {
    free_now(block, last_use);
    return;
  }
  try {
    const MutexLock lock(mutex_);
    pending_.push_back({block, last_use});
    pending_bytes_.fetch_add(block.bytes, std::memory_order_relaxed);
  } catch (...) {
    // No memory to store the pending free. Waiting is slow, but always correct.
    static_cast<void>(internal::finish(last_use));
    free_now(block, last_use);
  }
}

void Device::free_now(const Block& block, Timepoint last_use) noexcept {
  if (Residency* set = residency()) set->remove(block);
  accounting_.remove(block.label, block.bytes);
  free_block(block, last_use);
}

void Device::free_reached(bool all) noexcept {
  if (pending_bytes_.load(std::memory_order_relaxed) == 0) return;
  // One block at a time, because freeing may call the driver and must not hold the lock. Blocks are released roughly in
  // the order in which their timepoints are reached, so checking the oldest is enough in the common case.
  while (true) {
    Pending reached;
    {
      const MutexLock lock(mutex_);
      std::size_t at = 0;
      const std::size_t looked_at = all ? pending_.size() : std::min<std::size_t>(1, pending_.size());
      while (at < looked_at && !is_reached(pending_[at].last_use)) ++at;
      if (at == looked_at) return;
      reached = pending_[at];
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(at));
      pending_bytes_.fetch_sub(reached.block.bytes, std::memory_order_relaxed);
    }
    free_now(reached.block, reached.last_use);
  }
}

bool Device::free_pending() noexcept {
  const std::size_t pending = pending_bytes_.load(std::memory_order_relaxed);
  free_reached(true);
  return pending_bytes_.load(std::memory_order_relaxed) < pending;
}

Result<Charge> Device::charge(const BlockSpec& spec, std::size_t piece_bytes, std::size_t pieces) {
  BERTH_TRY(reserve(spec, piece_bytes * pieces));
  return Charge(accounting_, spec.label, piece_bytes, pieces);
}

void Device::explain(OutOfMemory& report) const {
  report.device = name_;
  report.pending_bytes += pending_bytes_.load(std::memory_order_relaxed);
  report.foreign_bytes = foreign_bytes_.load(std::memory_order_relaxed);
  report.foreign_count = foreign_count_.load(std::memory_order_relaxed);
  accounting_.explain(report);
}

Result<QueuePtr> Device::make_queue() {
  BERTH_TRY_ASSIGN(std::unique_ptr<Queue> queue, create_queue());
  if (queue->timeline() == TimelineId::kNone)
    return Error(Code::kOutOfMemory, Layer::kDevice, "65535 queues are alive; drop some before making another");
  return QueuePtr(queue.release(), [device = shared_from_this()](Queue* last) { delete last; });
}

Result<Queue*> Device::default_queue() {
  if (Queue* queue = default_queue_.load(std::memory_order_acquire)) return queue;
  const MutexLock lock(default_queue_mutex_);
  if (default_queue_owner_ == nullptr) {
    BERTH_TRY_ASSIGN(default_queue_owner_, create_queue());
    default_queue_.store(default_queue_owner_.get(), std::memory_order_release);
  }
  return default_queue_owner_.get();
}

Result<void> Device::keep_resident() {
  if (residency_ != nullptr) return {};
  if (const std::uint64_t made = accounting_.counters().allocations; made > 0)
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "keep_resident() must precede the first allocation, and {} were made", made);
  auto set = residency_allowed() ? make_residency() : nullptr;
  if (set == nullptr)
    return Error::with_text(Code::kUnsupported, Layer::kDevice,
                            std::string(name()) + " keeps no residency set, or BERTH_RESIDENCY=0 turned it off");
  residency_ = std::move(set);
  return {};
}

Result<std::unique_ptr<AddressSpace>> Device::make_address_space() {
  return Error::with_text(Code::kUnsupported, Layer::kDevice, std::string(name()) + " has no virtual-memory mapping");
}

Result<Kernel> Device::make_kernel(const KernelSource&) {
  return Error::with_text(Code::kUnsupported, Layer::kDevice, std::string(name()) + " runs no kernels");
}

Result<Block> Device::import_block(const ForeignMemory&) {
  return Error::with_text(Code::kUnsupported, Layer::kDevice, std::string(name()) + " cannot import foreign memory");
}

Result<void> Device::check_host_access(const Block&, std::size_t, std::size_t) const {
  return {};
}

void Device::destroy() noexcept {
  if (residency_ != nullptr) residency_->keep_alive(std::chrono::milliseconds(0));
  default_queue_.store(nullptr, std::memory_order_release);
  std::unique_ptr<Queue> last_queue;
  {
    const MutexLock lock(default_queue_mutex_);
    last_queue = std::move(default_queue_owner_);
  }
  last_queue.reset();  // waits for its work
  // No queue is left, so every timepoint is reached.
  free_reached(true);
  if (tracks_leaks() && accounting_.counters().live_count > 0) print_leaks();
}

// No buffer is left, because a buffer keeps its device alive: these are blocks that somebody never released.
void Device::print_leaks() const noexcept {
  try {
    const LiveCounters live = accounting_.counters();
    std::string text = name_ + " is destroyed with " + format_bytes(live.live_bytes) + " in " +
                       std::to_string(live.live_count) + " blocks alive:\n";
    for (const OutOfMemory::Holder& holder : accounting_.holders())
      text += "  " + format_bytes(holder.bytes) + " in " + std::to_string(holder.count) + " blocks, label \"" +
              holder.label + "\"\n";
    std::fprintf(stderr, "berth: %s", text.c_str());
  } catch (...) {
    std::fputs("berth: a device is destroyed with blocks alive\n", stderr);
  }
}

}  // namespace berth
