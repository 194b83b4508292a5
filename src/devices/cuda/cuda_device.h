// The CUDA device: one GPU by its ordinal, in its primary context, through the driver API. Memory comes from a
// stream-ordered pool of the driver if there is one, and from plain allocations otherwise. Frees are put on the stream
// that used the memory last, so neither the host nor another stream waits for them. Shared by std::shared_ptr; any
// thread may call; the context outlives every block, queue and kernel.
//
// Memory requested without a queue is allocated on a stream of the device, the home stream. A queue that uses such
// memory first waits, on the GPU, for the allocations made on the home stream since it last did so; `home_epoch` counts
// them.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/devices/cuda_info.h"
#include "berth/memory/device.h"
#include "devices/cuda/cuda_address_space.h"
#include "devices/cuda/cuda_context.h"
#include "devices/cuda/cuda_residency.h"

namespace berth::internal::cuda {

class CudaQueue;

class CudaDevice final : public Device {
 public:
  // kDeviceUnavailable without a driver or for an unknown ordinal; otherwise the driver's error.
  static Result<berth::DevicePtr> open(int ordinal);

  ~CudaDevice() override;

  std::string description() const override;
  Result<Kernel> make_kernel(const KernelSource& source) override;
  Result<Block> import_block(const ForeignMemory& memory) override;
  void forget_import(const Block& block) noexcept override;
  bool reaches(const Device& other) const noexcept override { return typeid(other) == typeid(CudaDevice); }
  Result<std::unique_ptr<AddressSpace>> make_address_space() override { return cuda::make_address_space(*this); }
  DlpackPlace dlpack_place(const Block& block) const noexcept override;
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override {
    return spec.host == HostAccess::kRequired && info_.managed_memory ? managed_flags() : BlockFlags::kNone;
  }
  void* native() noexcept override { return context_; }
  void destroy() noexcept override;
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  const Driver& driver() const noexcept { return driver_; }
  Context context() const noexcept { return context_; }
  const CudaInfo& info() const noexcept { return info_; }
  EventPool& events() noexcept { return events_; }
  PinnedPool& pinned() noexcept { return pinned_; }
  MemoryPool pool() const noexcept { return pool_; }

  // Orders work that is put on `stream`, of any device, after this call, after everything allocated on the home stream
  // so far. `seen` is the caller's record of how far it has waited. No driver call if nothing is new.
  Result<void> order_after_home(const CudaDevice& owner, Stream stream, std::uint64_t& seen);

  // Runs `put(stream)` on the home stream, such that later users are ordered after it.
  template <class Put>
  Status at_home(const Put& put) {
    const Status status = put(home_);
    home_epoch_.fetch_add(1, std::memory_order_release);
    return status;
  }

  // Blocks until the stream is idle, for callers that cannot report errors: records errors, and synchronises the whole
  // context if the stream does not answer. False if neither answers: the device is lost.
  bool settle(Stream stream) noexcept;
  // The same for all streams of the context. A stream that captures has nothing to wait for but what came before.
  Status settle_all() noexcept;

  // A stream of this device captures between these calls. Meanwhile frees are put off.
  void capture_began() noexcept { captures_.fetch_add(1, std::memory_order_acq_rel); }
  void capture_ended() noexcept;
  bool is_capturing() const noexcept { return captures_.load(std::memory_order_acquire) > 0; }

  // For errors in destructors and other places that cannot report them: kept until they are taken, first one first.
  void record_error(const Error& error) noexcept;
  void record(Status status, const char* call) noexcept;
  bool record(const ContextScope& scope) noexcept;  // true if there was no error
  std::optional<Error> take_error();

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override;
  void free_block(const Block& block, Timepoint last_use) noexcept override;
  bool frees_in_order() const noexcept override { return pool_ != nullptr; }
  Result<std::unique_ptr<Queue>> create_queue() override;
  std::unique_ptr<Residency> make_residency() override { return std::make_unique<CudaResidency>(*this); }

 private:
  // Without concurrent access the host must not access managed memory while the GPU runs anything, which only a wait
  // can ensure.
  BlockFlags managed_flags() const noexcept {
    return BlockFlags::kHostPointer | (info_.concurrent_managed_access ? BlockFlags::kHostTransfer : BlockFlags::kNone);
  }
  CudaDevice(const Driver& driver, CudaInfo info, DeviceLimits limits);
  Result<void> start();
  void stop() noexcept;
  Result<Block> allocate_managed(const BlockSpec& spec);
  void free_managed(const Block& block, Timepoint last_use) noexcept;
  void free_managed_reached(bool all) noexcept;
  bool put_off_free(const Block& block, Timepoint last_use) noexcept;

  const Driver& driver_;
  const CudaInfo info_;
  Context context_ = nullptr;
  MemoryPool pool_ = nullptr;  // null: plain allocation
  Stream home_ = nullptr;
  std::atomic<std::uint64_t> home_epoch_{0};
  Mutex home_mutex_;  // guards the next two
  EventPtr home_event_ BERTH_GUARDED_BY(home_mutex_);
  std::uint64_t home_event_epoch_ BERTH_GUARDED_BY(home_mutex_) = 0;
  EventPool events_;
  PinnedPool pinned_;
  Mutex errors_mutex_;
  std::optional<Error> error_ BERTH_GUARDED_BY(errors_mutex_);
  struct Managed {
    Block block;
    Timepoint last_use;
  };
  Mutex managed_mutex_;
  std::vector<Managed> managed_ BERTH_GUARDED_BY(managed_mutex_);  // released, but their last use is not reached
  std::atomic<int> captures_{0};                                   // in progress
  std::vector<Managed> put_off_ BERTH_GUARDED_BY(managed_mutex_);  // released during a capture
};

}  // namespace berth::internal::cuda
