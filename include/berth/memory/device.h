// A backend, and the bottom allocator of every stack on it. A device hands out blocks, makes queues and kernels, and
// imports foreign memory. Only devices call drivers. Devices are shared by std::shared_ptr, may be called from any
// thread, and outlive every block and queue made from them. device("CUDA:1") opens one by name: see registry.h.
//
// A new device implements allocate_block, free_block and create_queue. Everything else has a default.
// docs/adding_a_device.md walks through one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/accounting.h"
#include "berth/memory/allocator.h"
#include "berth/memory/kernel.h"
#include "berth/memory/queue.h"
#include "berth/memory/residency.h"

namespace berth {

// Limits of a device. Zero means that no limit is known.
struct DeviceLimits {
  std::size_t max_block_bytes = 0;     // largest single allocation
  std::size_t max_binding_bytes = 0;   // largest window a kernel can bind
  std::size_t binding_alignment = 1;   // of the start of a bound window
  std::size_t transfer_alignment = 1;  // required by the driver; Berth accepts any offset and length
  std::size_t total_bytes = 0;         // memory of the device
  bool unified_memory = false;         // host and device access the same bytes
  bool f16_kernels = false;
};

struct DeviceCounters : LiveCounters {
  std::size_t pending_bytes = 0;  // released, waiting for their last use
  std::size_t foreign_bytes = 0;  // imported memory, which is not part of the live bytes
  std::size_t foreign_count = 0;
};
std::string to_string(const DeviceCounters& counters);

// Memory that another library allocated. `address` is a host pointer on CPU and the device's own handle elsewhere.
struct ForeignMemory {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool read_only = false;
  // Called once, when the last handle is destroyed and no recorded work uses the memory; may be empty. It may destroy
  // buffers and queues, and must not throw.
  std::function<void()> release{};
};

// The location of a block in DLPack's terms, for other frameworks.
struct DlpackPlace {
  std::int32_t device_type = 1;  // kDLCPU
  std::int32_t device_id = 0;
  std::uint64_t data = 0;  // of the block's first byte: an address, or an object of the driver
  bool is_object = false;  // `data` is an object, and offsets go into DLTensor::byte_offset
};

// A reservation of device memory that does not come from Device::allocate, such as the pages behind reserved addresses.
// It counts against the budget at once; the destructor cancels the part that keep() has not made permanent. A Charge
// belongs to one thread and must not outlive its device.
class Charge {
 public:
  Charge(Charge&& other) noexcept
      : accounting_(std::exchange(other.accounting_, nullptr)),
        label_(other.label_),
        piece_bytes_(other.piece_bytes_),
        pieces_(other.pieces_) {}
  Charge& operator=(Charge&&) = delete;
  ~Charge() {
    if (accounting_ != nullptr) accounting_->cancel(pieces_ * piece_bytes_);
  }

  // Counts `pieces` of the reservation as live blocks, each until Device::discharge. Call it at most once.
  void keep(std::size_t pieces = 1) noexcept {
    for (std::size_t i = 0; i < pieces; ++i) accounting_->add(label_, piece_bytes_);
    pieces_ -= pieces;
  }

 private:
  friend class Device;
  Charge(Accounting& accounting, Name label, std::size_t piece_bytes, std::size_t pieces) noexcept
      : accounting_(&accounting), label_(label), piece_bytes_(piece_bytes), pieces_(pieces) {}

  Accounting* accounting_;
  Name label_;
  std::size_t piece_bytes_;
  std::size_t pieces_;
};

class AddressSpace;

class Device : public Allocator, public std::enable_shared_from_this<Device> {
 public:
  ~Device() override;

  // The normalised name, such as "CPU", "DISK:/models/a.gguf", "CUDA:1".
  std::string_view name() const noexcept final { return name_; }
  // The part of the name before the colon: "CPU", "DISK", "CUDA".
  std::string_view kind() const noexcept { return std::string_view(name_).substr(0, name_.find(':')); }
  // The number after the colon; 0 if there is none.
  int ordinal() const noexcept;
  // The driver's name for it: "NVIDIA H100", "llvmpipe (LLVM 15)".
  virtual std::string description() const { return std::string(name()); }
  const DeviceLimits& limits() const noexcept { return limits_; }
  DeviceCounters counters() const noexcept;

  // Refuses allocations that would raise the live bytes above `bytes`; 0 lifts the budget.
  void set_budget(std::size_t bytes) noexcept { accounting_.set_limit(bytes == 0 ? Accounting::kNoLimit : bytes); }

  // Called before an allocation fails for lack of memory. Returns whether it freed something; the allocation is then
  // retried once. An exception passes through the allocation, which then has changed nothing. An empty function removes
  // the callback.
  using PressureCallback = std::function<bool(const BlockSpec&)>;
  void on_pressure(PressureCallback callback);

  // Allocator. Zero-byte requests, budgets, counters, pressure callbacks, deferred frees and residency are handled
  // here, once for all devices.
  Result<Block> allocate(const BlockSpec& spec) final;
  void release(const Block& block, Timepoint last_use = {}) noexcept final;
  Device& device() noexcept final { return *this; }
  // Host memory, unless a device overrides it. A device without host pointers or with read-only memory must override
  // it; otherwise a refused access to a lazy buffer allocates its memory first.
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override;
  void explain(OutOfMemory& report) const final;

  // For allocators that obtain memory from the driver themselves: reserves `pieces` times `piece_bytes` for the request
  // `spec` within the budget. kOutOfMemory with an explanation.
  Result<Charge> charge(const BlockSpec& spec, std::size_t piece_bytes, std::size_t pieces = 1);
  // Ends the accounting of one kept piece.
  void discharge(Name label, std::size_t piece_bytes) noexcept { accounting_.remove(label, piece_bytes); }

  // Calls `take()`, and retries it while it fails for lack of memory and something can be freed: first blocks that
  // waited for their last use, then what the pressure callback releases. Requires: the caller holds no lock that the
  // callback may acquire.
  template <class Take>
  auto take_under_pressure(const BlockSpec& spec, const Take& take) -> decltype(take()) {
    auto taken = take();
    for (const bool ask : {false, true})
      if (!taken && taken.error().code() == Code::kOutOfMemory && (ask ? relieve(spec) : free_pending()))
        taken = take();
    return taken;
  }

  // Creates a queue. The queue keeps the device alive.
  Result<QueuePtr> make_queue();

  // The queue used by copyin, copyout and copy_from. Created by the first call.
  Result<Queue*> default_queue();

  // Waits for everything submitted to any queue of this device, then frees the blocks that waited for it.
  Result<void> synchronize();

  // Creates a kernel. kUnsupported if the device has no kernels.
  virtual Result<Kernel> make_kernel(const KernelSource& source);

  // import_block wraps foreign memory in a block; forget_import undoes that when the last handle is destroyed. Neither
  // frees the memory. Buffer::import calls both, and count_foreign with +1 and -1.
  virtual Result<Block> import_block(const ForeignMemory& memory);
  virtual void forget_import(const Block& block) noexcept { static_cast<void>(block); }
  void count_foreign(std::size_t bytes, int sign) noexcept;

  // True if a queue of this device can copy from or to a block of `other` without going through the host.
  virtual bool reaches(const Device& other) const noexcept { return this == &other; }

  // Checks that the host can read through block.host now. kIo if a mapped file was truncated.
  virtual Result<void> check_host_access(const Block& block, std::size_t offset, std::size_t bytes) const;

  // The set of blocks that every submit makes resident; null if the device has none.
  Residency* residency() noexcept { return residency_.get(); }

  // Creates the residency set on devices that have one only on request (CPU). kUnsupported if the device has no such
  // set or BERTH_RESIDENCY=0; kInvalidArgument after the first allocation, which the set would miss.
  Result<void> keep_resident();

  // Reserved addresses whose memory can come and go. kUnsupported on devices without virtual-memory mapping.
  virtual Result<std::unique_ptr<AddressSpace>> make_address_space();

  // The location that other frameworks use for the block. The default is host memory.
  virtual DlpackPlace dlpack_place(const Block& block) const noexcept {
    return {.data = reinterpret_cast<std::uint64_t>(block.host)};
  }

  // The driver's own object (CUcontext, MTL::Device*, WGPUDevice), or null.
  virtual void* native() noexcept { return nullptr; }

  // Called once before destruction, while the object is still complete: waits for work and frees pending blocks. An
  // override must call the base function first.
  virtual void destroy() noexcept;

 protected:
  // `name` is the normalised name: the kind, and after a colon the ordinal or path.
  Device(std::string name, DeviceLimits limits);

  // Allocates memory. Called with spec.bytes > 0 and an alignment that is a power of two. An implementation reports
  // lack of memory as kOutOfMemory (built with out_of_memory() or plain).
  virtual Result<Block> allocate_block(const BlockSpec& spec) = 0;

  // Frees a block. `last_use` is reached, unless frees_in_order() returns true: then the driver orders the free after
  // it.
  virtual void free_block(const Block& block, Timepoint last_use) noexcept = 0;
  virtual bool frees_in_order() const noexcept { return false; }

  virtual Result<std::unique_ptr<Queue>> create_queue() = 0;

  // The residency set of this kind of device, or null.
  virtual std::unique_ptr<Residency> make_residency() { return nullptr; }

  // Each queue registers itself while it lives, so that synchronize() can wait for all queues.
  friend class Queue;

 private:
  struct Pending {
    Block block;
    Timepoint last_use;
  };

  Result<void> reserve(const BlockSpec& spec, std::size_t bytes);
  Result<Block> try_allocate(const BlockSpec& spec);
  void free_now(const Block& block, Timepoint last_use) noexcept;
  void free_reached(bool all) noexcept;
  bool free_pending() noexcept;  // true if it freed something
  bool relieve(const BlockSpec& spec);
  void print_leaks() const noexcept;

  const std::string name_;
  const DeviceLimits limits_;
  Accounting accounting_;
  std::atomic<std::size_t> pending_bytes_{0}, foreign_bytes_{0}, foreign_count_{0};
  std::unique_ptr<Residency> residency_;  // set before the first allocation, then constant

  Mutex mutex_;  // guards what follows; never held while a driver or callback runs
  std::shared_ptr<const PressureCallback> pressure_ BERTH_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ BERTH_GUARDED_BY(mutex_);  // in order of release
  Mutex queues_mutex_;  // held by synchronize() so that no queue is destroyed meanwhile
  std::vector<Queue*> queues_ BERTH_GUARDED_BY(queues_mutex_);
  Mutex default_queue_mutex_;
  std::atomic<Queue*> default_queue_{nullptr};
  std::unique_ptr<Queue> default_queue_owner_ BERTH_GUARDED_BY(default_queue_mutex_);
};

using DevicePtr = std::shared_ptr<Device>;

// The name of the device.
inline std::string to_string(const Device& device) {
  return std::string(device.name());
}

// Moves a new device into shared ownership such that destroy() runs before its destructor.
DevicePtr share_device(std::unique_ptr<Device> device);

}  // namespace berth
