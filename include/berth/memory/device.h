// A backend, and the bottom allocator of every stack on it. A device hands out blocks, makes queues and
// kernels, and imports foreign memory. Drivers are called here and nowhere above. Devices are shared by
// std::shared_ptr, may be called from any thread, and outlive every block and queue made from them.
//
// A new device implements allocate_block, free_block and create_queue; everything else has a default.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "berth/memory/allocator.h"
#include "berth/memory/kernel.h"
#include "berth/memory/label_counters.h"
#include "berth/memory/queue.h"
#include "berth/memory/residency.h"

namespace berth {

enum class DeviceKind : std::uint8_t { kCpu, kDisk, kCuda, kMetal, kWebGpu };

// What a caller needs to know before it asks. Zero means no limit is known.
struct DeviceLimits {
  std::size_t max_block_bytes = 0;     // largest single allocation
  std::size_t max_binding_bytes = 0;   // largest window a kernel can bind
  std::size_t binding_alignment = 1;   // where a bound window may start
  std::size_t transfer_alignment = 1;  // what the driver wants; Berth takes any offset and length
  std::size_t total_bytes = 0;         // memory of the device
  bool unified_memory = false;         // the host reaches the same bytes
  bool f16_kernels = false;
};

// A device's live bytes and their history. Cheap to read at any time.
struct DeviceCounters {
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t peak_bytes = 0;
  std::size_t pending_bytes = 0;  // released, waiting for their last use
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::size_t foreign_bytes = 0;  // imported: somebody else's, and in none of the above
  std::size_t foreign_count = 0;
};

// Memory that somebody else made. `address` is a host pointer on CPU and the device's own handle elsewhere.
struct ForeignMemory {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool read_only = false;
  std::function<void()> release{};  // called once when the last handle goes; may be empty
};

// Memory of a device that comes and goes without Device::allocate, such as the pages behind reserved addresses: counted
// against the budget from the moment it is made. What keep() does not make lasting is uncounted when it ends. Belongs
// to one thread; lives no longer than its device.
class Charge {
 public:
  Charge(Charge&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        label_(other.label_),
        piece_bytes_(other.piece_bytes_),
        pieces_(other.pieces_) {}
  Charge& operator=(Charge&&) = delete;
  ~Charge();

  // Counts `pieces` of it until Device::discharge, by label and in the peak too. Called once.
  void keep(std::size_t pieces = 1) noexcept;

 private:
  friend class Device;
  Charge(Device& device, std::uint16_t label, std::size_t piece_bytes, std::size_t pieces) noexcept
      : device_(&device), label_(label), piece_bytes_(piece_bytes), pieces_(pieces) {}

  Device* device_;
  std::uint16_t label_;
  std::size_t piece_bytes_;
  std::size_t pieces_;
};

class KeepAlive;

class Device : public Allocator, public std::enable_shared_from_this<Device> {
 public:
  ~Device() override;

  DeviceKind kind() const noexcept { return kind_; }
  // The normalised name, such as "CPU", "DISK:/models/a.gguf", "CUDA:1".
  std::string_view name() const noexcept final { return name_; }
  // What the driver calls it: "NVIDIA H100", "llvmpipe (LLVM 15)".
  virtual std::string description() const { return std::string(name()); }
  const DeviceLimits& limits() const noexcept { return limits_; }
  DeviceCounters counters() const noexcept;

  // Refuses allocations that would take live bytes past `bytes`; 0 lifts the budget.
  void set_budget(std::size_t bytes) noexcept { budget_.store(bytes, std::memory_order_relaxed); }

  // Called before an allocation fails for want of memory; returns whether it freed something, in which case
  // the allocation is tried once more. An empty function removes it.
  using PressureCallback = std::function<bool(const BlockSpec&)>;
  void on_pressure(PressureCallback callback);

  // Allocator. Zero-byte requests, budgets, counters, pressure, deferred frees and residency are handled
  // here, once for all devices.
  Result<Block> allocate(const BlockSpec& spec) final;
  void release(const Block& block, Timepoint last_use = {}) noexcept final;
  Device& device() noexcept final { return *this; }
  void explain(OutOfMemory& report) const final;

  // For allocators that take memory from the driver by themselves. The budget and the counters hold for it as for a
  // block: `pieces` times `piece_bytes` for the request `spec`. OutOfMemory with an explanation.
  Result<Charge> charge(const BlockSpec& spec, std::size_t piece_bytes, std::size_t pieces = 1);
  // One kept piece is gone.
  void discharge(std::uint16_t label, std::size_t piece_bytes) noexcept;

  // Calls `take()`, and again while it fails for want of memory and something can be freed: what waited for its last
  // use, then what the pressure callback gives up. Requires: no lock is held that the callback may want.
  template <class Take>
  auto take_under_pressure(const BlockSpec& spec, const Take& take) -> decltype(take()) {
    auto taken = take();
    for (const bool ask : {false, true})
      if (!taken && taken.error().code() == Code::kOutOfMemory && (ask ? relieve(spec) : free_pending()))
        taken = take();
    return taken;
  }

  // A new queue, which keeps the device alive.
  Result<QueuePtr> make_queue();

  // The queue behind copyin, copyout and copy_from. Made at the first call.
  Result<Queue*> default_queue();

  // Waits for everything submitted to any queue of this device, and frees what waited for it.
  Result<void> synchronize();

  // Unsupported on devices without kernels.
  virtual Result<Kernel> make_kernel(const KernelSource& source);

  // A block around foreign memory, and the word that its last handle is gone. The driver frees nothing.
  virtual Result<Block> import_block(const ForeignMemory& memory);
  virtual void forget_import(const Block& block) noexcept { static_cast<void>(block); }
  // Counts an imported block as foreign from now on, or no longer. Buffer::import does so.
  void count_foreign(std::size_t bytes) noexcept {
    foreign_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    foreign_count_.fetch_add(1, std::memory_order_relaxed);
  }
  void uncount_foreign(std::size_t bytes) noexcept {
    foreign_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    foreign_count_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Whether a queue of this device can copy from or to a block of `other` without the host.
  virtual bool reaches(const Device& other) const noexcept { return this == &other; }

  // Whether host reads through block.host would be safe now: a mapped file that shrank is an Io error.
  virtual Result<void> check_host_access(const Block& block, std::size_t offset, std::size_t bytes) const;

  // The set that every submit brings up to date; null when the device keeps none.
  Residency* residency() noexcept { return residency_.get(); }

  // Starts keeping this device's memory in place, on devices that do so only when asked (CPU). Unsupported where the
  // device has no such notion or BERTH_RESIDENCY=0; InvalidArgument once memory is allocated: it would be left out.
  Result<void> keep_resident();

  // Renews residency whenever nothing was submitted for an interval, so that the first work after a pause finds its
  // memory in place. One thread wakes each interval; zero stops it, and so does the end of the device. Unsupported
  // without a residency set.
  Result<void> keep_alive(std::chrono::milliseconds interval);

  // The driver's own object (CUcontext, MTL::Device*, WGPUDevice), or null.
  virtual void* native() noexcept { return nullptr; }

  // Called once before destruction, while the whole object still stands: waits for work and frees what is
  // pending. A subclass that overrides it calls it first.
  virtual void destroy() noexcept;

 protected:
  Device(DeviceKind kind, std::string name, DeviceLimits limits);

  // Requires of the implementation: spec.bytes > 0; alignment is a power of two; a failure for want of memory
  // is Code::kOutOfMemory (built with out_of_memory() or plain).
  virtual Result<Block> allocate_block(const BlockSpec& spec) = 0;

  // Frees a block. `last_use` is reached, unless frees_in_order() says that the driver orders it itself.
  virtual void free_block(const Block& block, Timepoint last_use) noexcept = 0;
  virtual bool frees_in_order() const noexcept { return false; }

  virtual Result<std::unique_ptr<Queue>> create_queue() = 0;

  // The residency set of this kind of device; null where there is none.
  virtual std::unique_ptr<Residency> make_residency() { return nullptr; }

  // Every live queue registers itself, so that synchronize() can wait for all.
  friend class Queue;
  friend class Charge;

 private:
  struct Pending {
    Block block;
    Timepoint last_use;
  };

  // Counts `bytes` more as live; returns how many that makes.
  Result<std::size_t> count_live(const BlockSpec& spec, std::size_t bytes);
  Result<Block> try_allocate(const BlockSpec& spec);
  void free_now(const Block& block, Timepoint last_use) noexcept;
  void free_reached(bool all) noexcept;
  bool free_pending() noexcept;  // whether anything was
  bool relieve(const BlockSpec& spec);

  const DeviceKind kind_;
  const std::string name_;
  const DeviceLimits limits_;
  std::atomic<std::size_t> budget_{0};
  std::atomic<std::size_t> live_bytes_{0}, live_count_{0}, peak_bytes_{0}, pending_bytes_{0};
  std::atomic<std::uint64_t> allocations_{0}, frees_{0};
  std::atomic<std::size_t> foreign_bytes_{0}, foreign_count_{0};

  LabelCounters labels_;
  std::unique_ptr<Residency> residency_;  // set before the first allocation, then constant

  std::mutex keep_alive_mutex_;
  std::unique_ptr<KeepAlive> keep_alive_;

  std::mutex mutex_;  // guards what follows; never held while a driver or callback runs
  std::shared_ptr<const PressureCallback> pressure_;
  std::deque<Pending> pending_;  // in order of release
  std::mutex queues_mutex_;      // held by synchronize() so that no queue goes away under it
  std::vector<Queue*> queues_;
  std::mutex default_queue_mutex_;
  std::atomic<Queue*> default_queue_{nullptr};
  std::unique_ptr<Queue> default_queue_owner_;
};

using DevicePtr = std::shared_ptr<Device>;

// Gives a new device to shared ownership such that destroy() runs before its destructor.
DevicePtr share_device(std::unique_ptr<Device> device);

// The device with this name: "CPU", "cpu:0", "DISK:/path/to/file", "CUDA:1", "METAL", "WEBGPU". The kind is
// case-insensitive; a path keeps its case. The same name gives the same device while it lives.
// InvalidArgument for a name that is no device's; DeviceUnavailable with what would make it available.
Result<DevicePtr> device(std::string_view name);

// One row of `berth devices`.
struct DeviceStatus {
  std::string name{};
  bool available = false;
  std::string description{};  // what it is, or why it is not available and what to do
  DeviceLimits limits{};
};

// Every device that this build knows, available or not. Opens drivers that are present.
std::vector<DeviceStatus> list_devices();

}  // namespace berth
