#include "devices/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "devices/cuda/cuda_capture.h"
#include "devices/cuda/cuda_kernel.h"
#include "devices/cuda/cuda_queue.h"

namespace berth::internal::cuda {
namespace {

// The alignment of every allocation of the driver.
constexpr std::size_t kDriverAlignment = 256;
constexpr std::size_t kMaxAlignment = std::size_t{8} << 20;

// The key of a block: the padding before its start in units of kDriverAlignment, and the timeline of the queue on whose
// stream it was allocated (kNone for the home stream).
constexpr std::uint32_t make_key(std::uint64_t moved, TimelineId timeline) noexcept {
  return static_cast<std::uint32_t>(moved / kDriverAlignment) | static_cast<std::uint32_t>(timeline) << 16;
}
constexpr std::uint64_t moved_by(std::uint32_t key) noexcept {
  return std::uint64_t{key & 0xffff} * kDriverAlignment;
}
constexpr TimelineId made_on(std::uint32_t key) noexcept {
  return static_cast<TimelineId>(key >> 16);
}

Result<int> attribute(const Driver& driver, Attribute which, Ordinal device) {
  int value = 0;
  if (const Status status = driver.cuDeviceGetAttribute(&value, which, device); status != kSuccess)
    return driver.error(status, "cuDeviceGetAttribute");
  return value;
}

Result<CudaInfo> read_info(const Driver& driver, int ordinal) {
  int count = 0;
  if (const Status status = driver.cuDeviceGetCount(&count); status != kSuccess)
    return driver.error(status, "cuDeviceGetCount");
  Ordinal device = 0;
  if (const Status status = driver.cuDeviceGet(&device, ordinal); status != kSuccess)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                            fmt::format("CUDA:{} is not available: cuDeviceGet says {}; the driver has {} device{}",
                                        ordinal, driver.words(status), count, count == 1 ? "" : "s"));
  CudaInfo info;
  info.ordinal = device;
  info.driver_version = driver.version;
  char name[256] = "";
  if (const Status status = driver.cuDeviceGetName(name, sizeof name, device); status != kSuccess)
    return driver.error(status, "cuDeviceGetName");
  info.name = name;
  if (const Status status = driver.cuDeviceTotalMem(&info.total_bytes, device); status != kSuccess)
    return driver.error(status, "cuDeviceTotalMem");
  Uuid uuid{};
  if (const Status status = driver.cuDeviceGetUuid(&uuid, device); status != kSuccess)
    return driver.error(status, "cuDeviceGetUuid");
  std::memcpy(info.uuid.data(), uuid.bytes, info.uuid.size());
  BERTH_TRY_ASSIGN(info.capability_major, attribute(driver, kAttributeCapabilityMajor, device));
  BERTH_TRY_ASSIGN(info.capability_minor, attribute(driver, kAttributeCapabilityMinor, device));
  BERTH_TRY_ASSIGN(info.multiprocessors, attribute(driver, kAttributeMultiprocessors, device));
  BERTH_TRY_ASSIGN(const int pools, attribute(driver, kAttributeMemoryPools, device));
  BERTH_TRY_ASSIGN(const int managed, attribute(driver, kAttributeManagedMemory, device));
  BERTH_TRY_ASSIGN(const int concurrent, attribute(driver, kAttributeConcurrentManagedAccess, device));
  BERTH_TRY_ASSIGN(const int mapping, attribute(driver, kAttributeVirtualMemory, device));
  info.stream_ordered_memory = pools != 0;
  info.managed_memory = managed != 0;
  info.concurrent_managed_access = concurrent != 0;
  info.virtual_memory = mapping != 0;
  for (int peer = 0; peer < count; ++peer) {
    if (peer == device) continue;
    int can = 0;
    if (const Status status = driver.cuDeviceCanAccessPeer(&can, device, peer); status != kSuccess)
      return driver.error(status, "cuDeviceCanAccessPeer");
    if (can != 0) info.peers.push_back(peer);
  }
  return info;
}

}  // namespace

CudaDevice::CudaDevice(const Driver& driver, CudaInfo info, DeviceLimits limits)
    : Device(fmt::format("CUDA:{}", info.ordinal), limits),
      driver_(driver),
      info_(std::move(info)),
      events_(*this),
      pinned_(*this) {}

Result<berth::DevicePtr> CudaDevice::open(int ordinal) {
  BERTH_TRY_ASSIGN(const Driver* const driver, Driver::open());
  BERTH_TRY_ASSIGN(CudaInfo info, read_info(*driver, ordinal));
  const DeviceLimits limits{
      .max_block_bytes = info.total_bytes, .total_bytes = info.total_bytes, .f16_kernels = info.capability_major >= 6};
  std::unique_ptr<CudaDevice> device(new CudaDevice(*driver, std::move(info), limits));
  BERTH_TRY(device->start());
  return share_device(std::move(device));
}

Result<void> CudaDevice::start() {
  if (const Status status = driver_.cuDevicePrimaryCtxRetain(&context_, ordinal()); status != kSuccess)
    return driver_.error(status, "cuDevicePrimaryCtxRetain");
  const ContextScope scope(*this);
  BERTH_TRY(scope.check());
  if (const Status status = driver_.cuStreamCreate(&home_, kStreamNonBlocking); status != kSuccess)
    return driver_.error(status, "cuStreamCreate");
  if (info_.stream_ordered_memory) {
    const PoolProperties properties{.type = kAllocationPinned,
                                    .handle_types = kHandleNone,
                                    .location = {kLocationDevice, ordinal()},
                                    .win32_attributes = nullptr,
                                    .max_size = 0,
                                    .usage = 0,
                                    .reserved = {}};
    if (const Status status = driver_.cuMemPoolCreate(&pool_, &properties); status != kSuccess)
      return driver_.error(status, "cuMemPoolCreate");
    // By default the driver releases free memory at every synchronisation and must map it again afterwards.
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    if (const Status status = driver_.cuMemPoolSetAttribute(pool_, kPoolReleaseThreshold, &keep); status != kSuccess)
      return driver_.error(status, "cuMemPoolSetAttribute");
  }
  // Device memory is always resident; only managed memory benefits from a residency set.
  if (info_.managed_memory && residency_allowed()) BERTH_TRY(keep_resident());
  return {};
}

void CudaDevice::destroy() noexcept {
  Device::destroy();
  stop();
}

CudaDevice::~CudaDevice() {
  stop();
}

void CudaDevice::stop() noexcept {
  if (context_ == nullptr) return;
  {
    const ContextScope scope(*this, 2);
    const UnsafeCalls unsafe(driver_);
    record(scope);
    if (home_ != nullptr) settle(home_);
    free_managed_reached(true);
    {
      const MutexLock lock(home_mutex_);
      home_event_.reset();
    }
    events_.clear();
    record(pinned_.clear(), "cuMemFreeHost");
    if (pool_ != nullptr) record(driver_.cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
    if (home_ != nullptr) record(driver_.cuStreamDestroy(home_), "cuStreamDestroy");
  }
  ContextScope::forget(*this);
  record(driver_.cuDevicePrimaryCtxRelease(ordinal()), "cuDevicePrimaryCtxRelease");
  context_ = nullptr;
}

std::string CudaDevice::description() const {
  return fmt::format("{}, compute capability {}.{}, {}, CUDA {}.{} driver", info_.name, info_.capability_major,
                     info_.capability_minor, format_bytes(info_.total_bytes), info_.driver_version / 1000,
                     info_.driver_version % 1000 / 10);
}

Result<Block> CudaDevice::allocate_block(const BlockSpec& spec) {
  BERTH_TRY(check_no_capture("an allocation", Layer::kDevice));
  free_managed_reached(false);
  if (spec.host == HostAccess::kRequired) return allocate_managed(spec);
  // A plain allocation is made on the current device; one from a pool names its stream.
  ContextScope scope(*this, pool_ != nullptr ? ContextScope::Trust::kMemory : ContextScope::Trust::kLook);
  BERTH_TRY(scope.check());
  if (spec.alignment > kMaxAlignment)
    return Error(Code::kUnsupported, Layer::kDevice, "an alignment of {} exceeds the {} of CUDA memory", spec.alignment,
                 kMaxAlignment);
  // Room to align the start more strictly than the driver does; the key stores the padding. This cannot overflow,
  // because the size was compared with the memory of the device.
  const std::size_t slack = spec.alignment > kDriverAlignment ? spec.alignment - kDriverAlignment : 0;
  Address raw = 0;
  Status status = kSuccess;
  const char* call = "";
  const auto take = [&](Stream stream) {
    call = pool_ != nullptr ? "cuMemAllocFromPoolAsync" : "cuMemAlloc";
    status = scope.call([&] {
      return pool_ != nullptr ? driver_.cuMemAllocFromPoolAsync(&raw, spec.bytes + slack, pool_, stream)
                              : driver_.cuMemAlloc(&raw, spec.bytes + slack);
    });
    if (status != kSuccess || !spec.zero) return status;
    call = "cuMemsetD8Async";
    status = scope.call([&] { return driver_.cuMemsetD8Async(raw, 0, spec.bytes + slack, stream); });
    // A plain block may be freed without involving a stream, so zeroing it is waited for.
    if (status == kSuccess && pool_ == nullptr) {
      call = "cuStreamSynchronize";
      status = driver_.cuStreamSynchronize(stream);
    }
    if (status == kSuccess) return status;
    if (pool_ != nullptr)
      record(driver_.cuMemFreeAsync(raw, stream), "cuMemFreeAsync");
    else if (settle(stream))
      record(driver_.cuMemFree(raw), "cuMemFree");
    return status;
  };
  TimelineId timeline = TimelineId::kNone;
  const bool named = spec.on != TimelineId::kNone && CudaQueue::with_timeline(spec.on, [&](CudaQueue& queue) {
                       // Memory that a capturing stream allocates would exist only while the graph runs.
                       if (&queue.cuda() == this && queue.capture() == nullptr) {
                         timeline = spec.on;
                         take(queue.stream());
                       } else {
                         at_home(take);
                       }
                     });
  if (!named) at_home(take);
  if (status != kSuccess) return driver_.error(status, call);
  const Address aligned = (raw + spec.alignment - 1) / spec.alignment * spec.alignment;
  return Block{.handle = aligned, .bytes = spec.bytes, .key = make_key(aligned - raw, timeline)};
}

// A free on a capturing stream would become part of the graph, and others may be unsafe on this thread.
bool CudaDevice::put_off_free(const Block& block, Timepoint last_use) noexcept {
  if (!is_capturing()) return false;
  try {
    const MutexLock lock(managed_mutex_);
    if (!is_capturing()) return false;
    put_off_.push_back({block, last_use});
  } catch (...) {
    record_error(Error(Code::kOutOfMemory, Layer::kDevice,
                       "no host memory to put off the free of {} bytes until a capture ends: they are lost",
                       block.bytes));
  }
  return true;
}

void CudaDevice::capture_ended() noexcept {
  std::vector<Managed> released;
  {
    const MutexLock lock(managed_mutex_);
    if (captures_.fetch_sub(1, std::memory_order_acq_rel) == 1) released.swap(put_off_);
  }
  for (const Managed& one : released) free_block(one.block, one.last_use);
}

void CudaDevice::free_block(const Block& block, Timepoint last_use) noexcept {
  if (put_off_free(block, last_use)) return;
  const ContextScope scope(*this, 2);
  if (!record(scope)) return;
  if (block.has(BlockFlags::kHostPointer)) {
    free_managed(block, last_use);
    return;
  }
  const Address raw = block.handle - moved_by(block.key);
  if (pool_ == nullptr) {  // the base has waited for the last use
    record(driver_.cuMemFree(raw), "cuMemFree");
    return;
  }
  // On the stream that used it last, the free is ordered after that use.
  const bool found = CudaQueue::with_timeline(last_use.timeline(), [&](CudaQueue& queue) {
    if (&queue.cuda() == this) {
      record(driver_.cuMemFreeAsync(raw, queue.stream()), "cuMemFreeAsync");
      return;
    }
    // A peer used it last: the home stream waits for that use, on the GPU.
    auto used = queue.event_after(last_use.value());
    if (used && driver_.cuStreamWaitEvent(home_, used->get(), 0) == kSuccess) {
      record(driver_.cuMemFreeAsync(raw, home_), "cuMemFreeAsync");
      return;
    }
    const ContextScope theirs(queue.cuda(), 2);
    queue.cuda().settle(queue.stream());
    const ContextScope ours(*this, 2);
    record(driver_.cuMemFreeAsync(raw, home_), "cuMemFreeAsync");
  });
  if (found) return;
  // Never used, or used by a queue that was destroyed and therefore waited. The free must still be ordered after the
  // allocation.
  Stream stream = home_;
  const auto choose = [&](CudaQueue& queue) {
    if (&queue.cuda() == this) stream = queue.stream();
    record(driver_.cuMemFreeAsync(raw, stream), "cuMemFreeAsync");
  };
  if (made_on(block.key) == TimelineId::kNone || !CudaQueue::with_timeline(made_on(block.key), choose))
    record(driver_.cuMemFreeAsync(raw, stream), "cuMemFreeAsync");
}

Result<Block> CudaDevice::allocate_managed(const BlockSpec& spec) {
  if (!info_.managed_memory)
    return Error(Code::kUnsupported, Layer::kDevice,
                 "{} bytes with a host pointer: this GPU has no managed memory; allocate without HostAccess::kRequired",
                 spec.bytes);
  if (spec.alignment > kDriverAlignment)
    return Error(Code::kUnsupported, Layer::kDevice, "managed memory is aligned to {} and {} was requested",
                 kDriverAlignment, spec.alignment);
  const ContextScope scope(*this);
  BERTH_TRY(scope.check());
  Address address = 0;
  const Status status = driver_.cuMemAllocManaged(&address, spec.bytes, kAttachGlobal);
  if (status != kSuccess) return driver_.error(status, "cuMemAllocManaged");
  auto* const host = reinterpret_cast<std::byte*>(address);
  if (spec.zero) std::memset(host, 0, spec.bytes);
  return Block{.handle = address, .host = host, .bytes = spec.bytes, .flags = managed_flags()};
}

void CudaDevice::free_managed(const Block& block, Timepoint last_use) noexcept {
  if (!is_reached(last_use)) {
    try {
      const MutexLock lock(managed_mutex_);
      managed_.push_back({block, last_use});
      return;
    } catch (...) {
      // No memory to store the pending free. Waiting is slow, but always correct.
      static_cast<void>(wait(last_use));
    }
  }
  // A prefetch on the home stream may still be in progress.
  if (settle(home_)) record(driver_.cuMemFree(block.handle), "cuMemFree");
}

void CudaDevice::free_managed_reached(bool all) noexcept {
  while (true) {
    Managed reached;
    {
      const MutexLock lock(managed_mutex_);
      const auto found = std::find_if(managed_.begin(), managed_.end(),
                                      [&](const Managed& one) { return all || is_reached(one.last_use); });
      if (found == managed_.end()) return;
      reached = *found;
      managed_.erase(found);
    }
    if (all) static_cast<void>(wait(reached.last_use));
    const ContextScope scope(*this, 2);
    if (record(scope) && settle(home_)) record(driver_.cuMemFree(reached.block.handle), "cuMemFree");
  }
}

std::size_t CudaDevice::trim(std::size_t keep_bytes) noexcept {
  if (capture_forbids()) return 0;
  const ContextScope scope(*this);
  if (!record(scope)) return 0;
  free_managed_reached(false);
  if (pool_ == nullptr) return 0;
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  record(driver_.cuMemGetInfo(&before, &total), "cuMemGetInfo");
  record(driver_.cuMemPoolTrimTo(pool_, keep_bytes), "cuMemPoolTrimTo");
  record(driver_.cuMemGetInfo(&after, &total), "cuMemGetInfo");
  return after > before ? after - before : 0;
}

Result<void> CudaDevice::order_after_home(const CudaDevice& owner, Stream stream, std::uint64_t& seen) {
  if (home_epoch_.load(std::memory_order_acquire) == seen) return {};
  const MutexLock lock(home_mutex_);
  const std::uint64_t epoch = home_epoch_.load(std::memory_order_acquire);
  if (home_event_ == nullptr || home_event_epoch_ != epoch) {
    const ContextScope scope(*this);
    BERTH_TRY(scope.check());
    BERTH_TRY_ASSIGN(EventPtr event, events_.take());
    if (const Status status = driver_.cuEventRecord(event.get(), home_); status != kSuccess)
      return driver_.error(status, "cuEventRecord");
    home_event_ = std::move(event);
    home_event_epoch_ = epoch;
  }
  const ContextScope scope(owner);
  BERTH_TRY(scope.check());
  if (const Status status = driver_.cuStreamWaitEvent(stream, home_event_.get(), 0); status != kSuccess)
    return driver_.error(status, "cuStreamWaitEvent");
  seen = epoch;
  return {};
}

Result<std::unique_ptr<Queue>> CudaDevice::create_queue() {
  return CudaQueue::make(*this);
}

Result<Kernel> CudaDevice::make_kernel(const KernelSource& source) {
  return CudaKernelBody::load(std::static_pointer_cast<CudaDevice>(shared_from_this()), source);
}

DlpackPlace CudaDevice::dlpack_place(const Block& block) const noexcept {
  constexpr std::int32_t kDlCuda = 2, kDlCudaManaged = 13;
  // Only managed memory has a host pointer.
  return {.device_type = block.has(BlockFlags::kHostPointer) ? kDlCudaManaged : kDlCuda,
          .device_id = ordinal(),
          .data = block.handle};
}

Result<Block> CudaDevice::import_block(const ForeignMemory& memory) {
  Block block{.handle = memory.address,
              .bytes = memory.bytes,
              .flags = BlockFlags::kForeign | (memory.read_only ? BlockFlags::kReadOnly : BlockFlags::kNone),
              .usage = Usage::kAll};
  if (memory.bytes == 0) return block;
  const ContextScope scope(*this);
  BERTH_TRY(scope.check());
  int owner = -1;
  const Status status = driver_.cuPointerGetAttribute(&owner, kPointerDeviceOrdinal, memory.address);
  if (status == kErrorInvalidValue)
    return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                            fmt::format("{} bytes to import at {:#x}, which CUDA does not know as memory of its own",
                                        memory.bytes, memory.address));
  if (status != kSuccess) return driver_.error(status, "cuPointerGetAttribute");
  if (owner != ordinal())
    return Error(Code::kInvalidArgument, Layer::kDevice, "the memory to import is on CUDA:{} and this is CUDA:{}",
                 owner, ordinal());
  return block;
}

void CudaDevice::forget_import(const Block&) noexcept {
  // The last use was waited for; work that was never submitted has no timepoint but runs nevertheless.
  CudaQueue::wait_for_unsubmitted(*this);
}

Status CudaDevice::settle_all() noexcept {
  if (!is_capturing()) return driver_.cuCtxSynchronize();
  const UnsafeCalls unsafe(driver_);
  Status status = driver_.cuStreamSynchronize(home_);
  CudaQueue::for_each_of(*this, [&](CudaQueue& queue) {
    const Status one = queue.settle_issued();
    if (status == kSuccess) status = one;
  });
  return status;
}

bool CudaDevice::settle(Stream stream) noexcept {
  const UnsafeCalls unsafe(driver_);
  const Status status = driver_.cuStreamSynchronize(stream);
  if (status == kSuccess) return true;
  record(status, "cuStreamSynchronize");
  const Status all = settle_all();
  record(all, "cuCtxSynchronize");
  return all == kSuccess;
}

void CudaDevice::record_error(const Error& error) noexcept {
  const MutexLock lock(errors_mutex_);
  if (!error_) error_ = error;
}

void CudaDevice::record(Status status, const char* call) noexcept {
  if (status == kSuccess) return;
  try {
    record_error(driver_.error(status, call));
  } catch (...) {
    record_error(
        Error(Code::kDriver, Layer::kDevice, "the CUDA driver failed with status {}", static_cast<unsigned>(status)));
  }
}

bool CudaDevice::record(const ContextScope& scope) noexcept {
  if (scope.status() != kSuccess) record(scope.status(), scope.failed_call());
  return scope.status() == kSuccess;
}

std::optional<Error> CudaDevice::take_error() {
  const MutexLock lock(errors_mutex_);
  return std::exchange(error_, std::nullopt);
}

}  // namespace berth::internal::cuda
