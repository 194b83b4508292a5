#include "berth/memory/device.h"

#include <algorithm>
#include <bit>

#include "berth/memory/out_of_memory.h"
#include "memory/keep_alive.h"
#include "base/try.h"

namespace berth {
namespace {

void raise_to(std::atomic<std::size_t>& peak, std::size_t value) noexcept {
  std::size_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

DevicePtr share_device(std::unique_ptr<Device> device) {
  return DevicePtr(device.release(), [](Device* last) {
    last->destroy();
    delete last;
  });
}

Device::Device(DeviceKind kind, std::string name, DeviceLimits limits)
    : kind_(kind), name_(std::move(name)), limits_(limits) {}

Device::~Device() = default;

DeviceCounters Device::counters() const noexcept {
  return {.live_bytes = live_bytes_.load(std::memory_order_relaxed),
          .live_count = live_count_.load(std::memory_order_relaxed),
          .peak_bytes = peak_bytes_.load(std::memory_order_relaxed),
          .pending_bytes = pending_bytes_.load(std::memory_order_relaxed),
          .allocations = allocations_.load(std::memory_order_relaxed),
          .frees = frees_.load(std::memory_order_relaxed),
          .foreign_bytes = foreign_bytes_.load(std::memory_order_relaxed),
          .foreign_count = foreign_count_.load(std::memory_order_relaxed)};
}

void Device::on_pressure(PressureCallback callback) {
  auto shared = callback ? std::make_shared<const PressureCallback>(std::move(callback)) : nullptr;
  const std::lock_guard lock(mutex_);
  pressure_ = std::move(shared);
}

bool Device::relieve(const BlockSpec& spec) {
  std::shared_ptr<const PressureCallback> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = pressure_;
  }
  return callback != nullptr && (*callback)(spec);
}

Result<std::size_t> Device::count_live(const BlockSpec& spec, std::size_t bytes) {
  // Reserve first, so that two threads cannot both take the last bytes of a budget.
  const std::size_t live = live_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const std::size_t budget = budget_.load(std::memory_order_relaxed);
  if (budget == 0 || live <= budget) return live;
  live_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  const std::size_t pending = pending_bytes_.load(std::memory_order_relaxed);
  const auto cause = live - budget <= pending ? OutOfMemory::Cause::kPendingFrees : OutOfMemory::Cause::kBudget;
  return out_of_memory(cause, *this, spec, budget, bytes);
}

Result<Block> Device::try_allocate(const BlockSpec& spec) {
  BERTH_TRY_ASSIGN(const std::size_t live, count_live(spec, spec.bytes));
  auto block = allocate_block(spec);
  if (!block) {
    live_bytes_.fetch_sub(spec.bytes, std::memory_order_relaxed);
    // Explained here, where the bytes that were not given are no longer counted as live.
    if (block.error().code() != Code::kOutOfMemory) return block;
    const OutOfMemory* report = block.error().out_of_memory();
    if (report != nullptr && report->cause != OutOfMemory::Cause::kCapacity) return block;
    return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec, 0, 0,
                         report == nullptr ? block.error().message() : "");
  }
  // The device may have given more than was asked for.
  const std::size_t extra = block->bytes - spec.bytes;
  if (extra > 0) live_bytes_.fetch_add(extra, std::memory_order_relaxed);
  raise_to(peak_bytes_, live + extra);
  return block;
}

Result<Block> Device::allocate(const BlockSpec& spec) {
  if (!std::has_single_bit(spec.alignment))
    return Error(Code::kInvalidArgument, Layer::kDevice, "an alignment of {} is not a power of two", spec.alignment);
  if (spec.bytes == 0) return Block{.label = spec.label.id(), .flags = BlockFlags::kNone, .usage = spec.usage};
  if (limits_.max_block_bytes > 0 && spec.bytes > limits_.max_block_bytes)
    return Error(Code::kOutOfMemory, Layer::kDevice,
                 "asked for {} bytes, and one block of this device holds at most {}; split the request", spec.bytes,
                 limits_.max_block_bytes);
  free_reached(false);
  auto block = take_under_pressure(spec, [&] { return try_allocate(spec); });
  if (!block) return block;
  block->label = spec.label.id();
  block->usage = spec.usage;
  live_count_.fetch_add(1, std::memory_order_relaxed);
  allocations_.fetch_add(1, std::memory_order_relaxed);
  labels_.add(block->label, block->bytes);
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
    const std::lock_guard lock(mutex_);
    pending_.push_back({block, last_use});
    pending_bytes_.fetch_add(block.bytes, std::memory_order_relaxed);
  } catch (...) {
    // No memory to remember it by: waiting is slow and always right.
    static_cast<void>(wait(last_use));
    free_now(block, last_use);
  }
}

void Device::free_now(const Block& block, Timepoint last_use) noexcept {
  if (Residency* set = residency()) set->remove(block);
  labels_.remove(block.label, block.bytes);
  live_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
  live_count_.fetch_sub(1, std::memory_order_relaxed);
  frees_.fetch_add(1, std::memory_order_relaxed);
  free_block(block, last_use);
}

void Device::free_reached(bool all) noexcept {
  if (pending_bytes_.load(std::memory_order_relaxed) == 0) return;
  // One at a time, because freeing may call the driver and must not hold the lock. Releases come roughly in the
  // order in which their moments are reached, so looking at the oldest is enough in the common case.
  while (true) {
    Pending reached;
    {
      const std::lock_guard lock(mutex_);
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
  BERTH_TRY(count_live(spec, piece_bytes * pieces));
  return Charge(*this, spec.label.id(), piece_bytes, pieces);
}

void Device::discharge(std::uint16_t label, std::size_t piece_bytes) noexcept {
  labels_.remove(label, piece_bytes);
  live_bytes_.fetch_sub(piece_bytes, std::memory_order_relaxed);
  live_count_.fetch_sub(1, std::memory_order_relaxed);
  frees_.fetch_add(1, std::memory_order_relaxed);
}

void Charge::keep(std::size_t pieces) noexcept {
  raise_to(device_->peak_bytes_, device_->live_bytes_.load(std::memory_order_relaxed));
  device_->live_count_.fetch_add(pieces, std::memory_order_relaxed);
  device_->allocations_.fetch_add(pieces, std::memory_order_relaxed);
  for (std::size_t i = 0; i < pieces; ++i) device_->labels_.add(label_, piece_bytes_);
  pieces_ -= pieces;
}

Charge::~Charge() {
  if (device_ != nullptr) device_->live_bytes_.fetch_sub(pieces_ * piece_bytes_, std::memory_order_relaxed);
}

void Device::explain(OutOfMemory& report) const {
  report.device = name_;
  const DeviceCounters now = counters();
  report.pending_bytes += now.pending_bytes;
  report.foreign_bytes = now.foreign_bytes;
  report.foreign_count = now.foreign_count;
  // A layer above that already counted its own live bytes knows them better: to the device, what a pool
  // keeps cached is live too.
  if (report.holders.empty()) report.holders = labels_.holders();
  if (report.live_count == 0) {
    report.live_bytes = now.live_bytes;
    report.live_count = now.live_count;
    report.peak_bytes = now.peak_bytes;
  }
}

Result<QueuePtr> Device::make_queue() {
  BERTH_TRY_ASSIGN(std::unique_ptr<Queue> queue, create_queue());
  if (queue->timeline() == 0)
    return Error(Code::kOutOfMemory, Layer::kDevice, "65535 queues are alive; drop some before making another");
  return QueuePtr(queue.release(), [device = shared_from_this()](Queue* last) { delete last; });
}

Result<Queue*> Device::default_queue() {
  if (Queue* queue = default_queue_.load(std::memory_order_acquire)) return queue;
  const std::lock_guard lock(default_queue_mutex_);
  if (default_queue_owner_ == nullptr) {
    BERTH_TRY_ASSIGN(default_queue_owner_, create_queue());
    default_queue_.store(default_queue_owner_.get(), std::memory_order_release);
  }
  return default_queue_owner_.get();
}

Result<void> Device::synchronize() {
  if (Queue* queue = default_queue_.load(std::memory_order_acquire)) BERTH_TRY(queue->finish());
  {
    const std::lock_guard lock(queues_mutex_);
    for (Queue* queue : queues_) BERTH_TRY(queue->wait_submitted());
  }
  free_reached(true);
  return {};
}

Result<void> Device::keep_resident() {
  if (residency_ != nullptr) return {};
  if (allocations_.load(std::memory_order_relaxed) > 0)
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "keep_resident() comes before the first allocation and {} were made", allocations_.load());
  auto set = residency_allowed() ? make_residency() : nullptr;
  if (set == nullptr)
    return Error::with_text(Code::kUnsupported, Layer::kDevice,
                            std::string(name()) + " keeps no residency set, or BERTH_RESIDENCY=0 turned it off");
  residency_ = std::move(set);
  return {};
}

Result<void> Device::keep_alive(std::chrono::milliseconds interval) {
  if (residency_ == nullptr)
    return Error::with_text(Code::kUnsupported, Layer::kDevice,
                            std::string(name()) + " keeps no residency set to keep alive: call keep_resident() first");
  const std::lock_guard lock(keep_alive_mutex_);
  keep_alive_.reset();
  if (interval.count() > 0) keep_alive_ = std::make_unique<KeepAlive>(*residency_, interval);
  return {};
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
  keep_alive_.reset();
  default_queue_.store(nullptr, std::memory_order_release);
  default_queue_owner_.reset();  // waits for its work
  // No queue is left, so every moment is reached.
  free_reached(true);
}

}  // namespace berth
