// A queue on WebGPU. All queues of a device share the one queue of the driver, which executes submissions in order;
// each Berth queue records into its own encoder. Transfers use the shortest valid path:
//
//   in place   the buffer maps, and nothing recorded or in flight uses it: memcpy, no submission at all
//   staged     through warm pooled chunks and a recorded copy; neighbouring small writes become one copy
//   patched    the first and last bytes that do not fill a 4-byte word: a kernel changes just those bytes, on the
//              device and in order, so that neighbours written by another queue stay as they are
//
// Threads and lifetimes: see berth/memory/queue.h.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/queue.h"
#include "devices/webgpu/webgpu_kernel.h"
#include "devices/webgpu/webgpu_staging.h"
#include "devices/webgpu/webgpu_storage.h"

namespace berth::internal::webgpu {

// State that the queues of a device share. Owned by the device.
struct Shared {
  explicit Shared(std::shared_ptr<Context> opened) : context(std::move(opened)), staging(*context) {}

  // The kernel of this text, compiled on first use.
  Result<std::shared_ptr<const WgslKernel>> kernel(std::string_view code, std::string_view entry = "main");

  std::shared_ptr<Context> context;
  Staging staging;
  BufferTable buffers;

 private:
  Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const WgslKernel>> kernels_ BERTH_GUARDED_BY(mutex_);
};

class WebgpuQueue final : public Queue {
 public:
  WebgpuQueue(Device& device, Shared& shared) : Queue(device), shared_(shared), context_(*shared.context) {}
  ~WebgpuQueue() override;

 protected:
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override;
  Result<void> do_read(const Window& source, std::span<std::byte> target) override;
  Result<void> do_copy(const Window& source, const Window& target) override;
  Result<void> do_fill(const Window& target, std::uint8_t value) override;
  Result<void> do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                         std::span<const std::byte> constants) override;
  Result<void> do_record_native(std::span<const Window> uses,
                                const std::function<Result<void>(void* native)>& record) override;
  Result<void> do_wait_for(Timepoint moment) override;
  Result<void> do_submit(std::uint64_t value) override;
  Result<void> do_wait(std::uint64_t value) override;
  std::uint64_t poll() noexcept override;

 private:
  struct PendingRead {
    std::size_t offset;  // in the batch's chunk
    std::byte* target;
    std::size_t bytes;
  };
  // The reads of one submission.
  struct Batch {
    Submission submission = 0;
    std::uint64_t value = 0;  // the timepoint it completes; 0 for an intermediate submission
    std::vector<PendingRead> reads;
    Chunk chunk;  // what `reads` come through
    std::optional<Error> failed;
  };
  struct PendingCopy {
    BufferStatePtr target;
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t bytes = 0;
  };
  struct Binding {
    const BufferState* state;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  using GroupKey = std::vector<std::uint64_t>;
  struct GroupHash {
    std::size_t operator()(const GroupKey& key) const noexcept;
  };

  // Recording.
  Result<BufferStatePtr> state_of(const Window& window, const char* what) const;
  Result<void> need_encoder();
  Result<void> need_pass();
  void end_pass() noexcept;
  void use(const BufferStatePtr& state);
  Result<void> record_pending_copy();
  Result<void> copy_bytes(wgpu::Buffer from, std::uint64_t from_offset, wgpu::Buffer to, std::uint64_t to_offset,
                          std::uint64_t bytes);
  // Requires: room_for_constants() and use() were called.
  Result<void> dispatch(const WgslKernel& kernel, const WgslKernel::Variant& variant, std::span<const Binding> bindings,
                        const std::array<std::uint32_t, 3>& groups, std::span<const std::byte> constants, bool cached);
  // Ensures that this recording can take this many bytes of constants. May submit what is recorded, so call it before
  // use() of the buffers of the same launch.
  Result<void> room_for_constants(std::size_t bytes);
  std::uint32_t place_constants(std::span<const std::byte> constants) noexcept;
  Result<wgpu::BindGroup> bind_group(const WgslKernel& kernel, const WgslKernel::Variant& variant,
                                     std::span<const Binding> bindings, std::size_t constants_bytes, bool cached);

  // Submitting.
  Result<void> flush(std::uint64_t value = 0);
  void abandon() noexcept;
  // Completes the batches whose submission is over, in order, up to the first that fails. Requires flight_mutex_.
  void complete_batches() BERTH_REQUIRES(flight_mutex_);
  Result<void> bring_back(const Batch& batch);
  void let_go(Batch& batch) noexcept;
  Result<void> room_for_reads();

  // Alignment of bytes (webgpu_queue_bytes.cpp).
  Result<bool> take_in_place(BufferState& state, std::size_t bytes);
  template <class Transfer>
  Result<void> in_place(BufferState& state, wgpu::Flags mode, std::size_t offset, std::size_t bytes,
                        Transfer&& transfer);
  Result<void> stage(const BufferStatePtr& state, std::size_t offset, std::span<const std::byte> source);
  Result<void> read_staged(const BufferStatePtr& state, std::size_t offset, std::span<std::byte> target);
  Result<void> patch(const BufferStatePtr& state, std::size_t offset, std::span<const std::byte> source);
  Result<void> fill_words(const BufferStatePtr& state, std::size_t offset, std::size_t bytes, std::uint32_t value);
  Result<void> copy_through_scratch(const BufferStatePtr& from, std::size_t from_offset, const BufferStatePtr& to,
                                    std::size_t to_offset, std::size_t bytes);

  Shared& shared_;
  Context& context_;

  // The recording. Guarded by Queue's lock.
  wgpu::CommandEncoder encoder_ = nullptr;
  wgpu::ComputePass pass_ = nullptr;
  std::uint64_t pass_variant_ = 0;  // the pipeline that is set in the pass
  std::vector<BufferStatePtr> used_;
  Chunk upload_;
  std::size_t uploaded_ = 0;
  PendingCopy pending_copy_;
  Chunk constants_;
  std::size_t constants_used_ = 0;
  std::vector<std::byte> constants_host_;  // if the chunk cannot be mapped: written just before the submit
  Chunk scratch_;
  Batch batch_;
  std::size_t read_back_ = 0;  // bytes used of the batch's last chunk
  std::unordered_map<GroupKey, wgpu::BindGroup, GroupHash> groups_;
  GroupKey key_;
  Submission last_ = 0;

  Mutex flight_mutex_;  // guards what follows; acquired after the lock of Queue, never before
  std::deque<Batch> flight_ BERTH_GUARDED_BY(flight_mutex_);
  std::atomic<std::uint64_t> reached_{0};
};

}  // namespace berth::internal::webgpu
