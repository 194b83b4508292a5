// A device on host memory whose queues do nothing until the test says so: for everything that depends on work still
// being in flight. Transfers, fills and kernels are deferred until their timepoint is reached, as on a GPU that is busy
// with something else, so an operation that is missing an order reads and leaves wrong bytes, every time. A test moves
// time with reach() and reach_all(); a wait moves it too.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"

namespace berth::doubles {

class LaggingKernel final : public KernelBody {
 public:
  explicit LaggingKernel(HostKernel run) : function(std::move(run)) {}
  const HostKernel function;
};

class LaggingQueue;

// The queues of one device.
struct LaggingQueues {
  LaggingQueue* find(TimelineId timeline);
  std::vector<LaggingQueue*> list();

  // Held while a queue executes work, which may make another queue execute its own: one for all of them.
  std::recursive_mutex turn;
  Mutex mutex;  // not held while a queue executes work
  std::vector<LaggingQueue*> alive BERTH_GUARDED_BY(mutex);
};

class LaggingQueue final : public Queue {
 public:
  LaggingQueue(Device& device, std::shared_ptr<LaggingQueues> all)
      : Queue(device), all_(std::move(all)), reached_(next().value() - 1), submitted_(next().value() - 1) {
    const MutexLock lock(all_->mutex);
    all_->alive.push_back(this);
  }
  ~LaggingQueue() override {
    {
      const MutexLock lock(all_->mutex);
      std::erase(all_->alive, this);
    }
    close();
  }

  // Executes the work submitted up to `moment`.
  void reach(Timepoint moment) { run_up_to(moment.value()); }
  void reach_all() { run_up_to(submitted_.load()); }

 protected:
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    defer([to = address(target), bytes = std::vector(source.begin(), source.end())] {
      std::memcpy(to, bytes.data(), bytes.size());
    });
    return {};
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    defer([from = address(source), target] { std::memcpy(target.data(), from, target.size()); });
    return {};
  }
  Result<void> do_copy(const Window& source, const Window& target) override {
    defer([from = address(source), to = address(target), bytes = source.bytes] { std::memmove(to, from, bytes); });
    return {};
  }
  Result<void> do_fill(const Window& target, std::uint8_t value) override {
    defer([to = address(target), bytes = target.bytes, value] { std::memset(to, value, bytes); });
    return {};
  }
  Result<void> do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                         std::span<const std::byte> constants) override {
    const auto body = std::dynamic_pointer_cast<const LaggingKernel>(kernel);
    if (body == nullptr) return Error(Code::kInvalidArgument, Layer::kQueue, "the kernel was made by another device");
    std::vector<std::span<std::byte>> windows;
    for (const KernelArgument& argument : arguments)
      windows.emplace_back(address(argument.window), argument.window.bytes);
    defer([body, windows, grid, bytes = std::vector(constants.begin(), constants.end())] {
      body->function({.windows = windows, .grid = grid, .constants = bytes});
    });
    return {};
  }
  // The work of this queue waits, not the host. For a queue of this device that only executes its work: a wait of the
  // host would also drop buffers, in the middle of whatever made this queue execute.
  Result<void> do_wait_for(Timepoint moment) override {
    defer([all = all_, moment] {
      if (LaggingQueue* const other = all->find(moment.timeline()))
        other->reach(moment);
      else
        berth::wait(moment).value();
    });
    return {};
  }
  Result<void> do_submit(std::uint64_t value) override {
    const MutexLock lock(mutex_);
    for (std::function<void()>& each : recorded_) flight_.push_back({value, std::move(each)});
    recorded_.clear();
    submitted_.store(value);
    return {};
  }
  // A wait is the test saying so.
  Result<void> do_wait(std::uint64_t value) override {
    run_up_to(value);
    return {};
  }
  std::uint64_t poll() noexcept override { return reached_.load(std::memory_order_acquire); }

 private:
  struct Work {
    std::uint64_t value;
    std::function<void()> run;
  };

  static std::byte* address(const Window& window) {
    return reinterpret_cast<std::byte*>(window.block.handle) + window.offset;
  }
  void defer(std::function<void()> work) {
    const MutexLock lock(mutex_);
    recorded_.push_back(std::move(work));
  }
  void raise_to(std::uint64_t value) {
    if (reached_.load() < value) reached_.store(value, std::memory_order_release);
  }
  // One thread at a time, in order. The lock of the lists is not held meanwhile: work may wait for another queue.
  void run_up_to(std::uint64_t value) {
    if (reached_.load(std::memory_order_acquire) >= value) return;  // also for work of this queue that asks for it
    const std::lock_guard turn(all_->turn);
    while (true) {
      Work next;
      {
        const MutexLock lock(mutex_);
        if (flight_.empty() || flight_.front().value > value) break;
        next = std::move(flight_.front());
        flight_.pop_front();
      }
      raise_to(next.value - 1);  // another queue that this work waits for may have waited for that
      next.run();
    }
    raise_to(value);
  }

  const std::shared_ptr<LaggingQueues> all_;
  Mutex mutex_;  // guards the lists
  std::vector<std::function<void()>> recorded_ BERTH_GUARDED_BY(mutex_);
  std::deque<Work> flight_ BERTH_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> reached_, submitted_;
};

inline std::vector<LaggingQueue*> LaggingQueues::list() {
  const MutexLock lock(mutex);
  return alive;
}
inline LaggingQueue* LaggingQueues::find(TimelineId timeline) {
  for (LaggingQueue* queue : list())
    if (queue->timeline() == timeline) return queue;
  return nullptr;
}

// Reserved addresses of the host. Releasing memory waits for submitted work, as the interface asks.
class LaggingAddressSpace final : public AddressSpace {
 public:
  LaggingAddressSpace(std::shared_ptr<LaggingQueues> queues, std::unique_ptr<AddressSpace> host, bool is_host)
      : queues_(std::move(queues)), host_(std::move(host)), is_host_(is_host) {}
  std::size_t granularity() const noexcept override { return host_->granularity(); }
  bool is_host() const noexcept override { return is_host_; }
  Result<std::uint64_t> reserve(std::size_t bytes) override { return host_->reserve(bytes); }
  void unreserve(std::uint64_t address, std::size_t bytes) noexcept override { host_->unreserve(address, bytes); }
  Result<void> map(std::uint64_t address, std::size_t bytes) override {
    auto mapped = host_->map(address, bytes);
    if (mapped && !is_host_) std::memset(reinterpret_cast<void*>(address), 0xa5, bytes);
    return mapped;
  }
  Result<void> unmap(std::uint64_t address, std::size_t bytes) override {
    for (LaggingQueue* queue : queues_->list()) queue->reach_all();
    return host_->unmap(address, bytes);
  }
  Result<std::unique_ptr<Frames>> make_frames(std::size_t bytes, std::size_t count) override {
    return host_->make_frames(bytes, count);
  }
  Result<void> map_frames(std::uint64_t address, const Frames& frames, std::size_t first, std::size_t count) override {
    return host_->map_frames(address, frames, first, count);
  }
  Result<void> unmap_frames(std::uint64_t address, const Frames& frames, std::size_t count) override {
    for (LaggingQueue* queue : queues_->list()) queue->reach_all();
    return host_->unmap_frames(address, frames, count);
  }

 private:
  std::shared_ptr<LaggingQueues> queues_;
  std::unique_ptr<AddressSpace> host_;
  bool is_host_;
};

class LaggingDevice final : public Device {
 public:
  // Without `host_pointers` the memory is reached through queues alone, as on a graphics card.
  static std::shared_ptr<LaggingDevice> make(bool host_pointers = true) {
    auto shared = share_device(std::unique_ptr<Device>(new LaggingDevice(host_pointers)));
    return std::static_pointer_cast<LaggingDevice>(shared);
  }

  BlockFlags expected_flags(const BlockSpec& spec) noexcept override {
    return host_pointers_ ? host_->expected_flags(spec) : BlockFlags::kNone;
  }

  // A queue whose moments the test moves.
  std::shared_ptr<LaggingQueue> lagging_queue() { return std::static_pointer_cast<LaggingQueue>(make_queue().value()); }

  Result<Kernel> make_kernel(const KernelSource& source) override {
    if (!source.host)
      return Error(Code::kInvalidArgument, Layer::kDevice, "a kernel of this double is a host callable");
    return Kernel(std::make_shared<const LaggingKernel>(source.host));
  }
  Result<Block> import_block(const ForeignMemory& memory) override {
    auto block = host_->import_block(memory);
    if (block) hide(*block);
    return block;
  }

  Result<std::unique_ptr<AddressSpace>> make_address_space() override {
    auto host = host_->make_address_space();
    if (!host) return host.error();
    return std::unique_ptr<AddressSpace>(new LaggingAddressSpace(queues_, *std::move(host), host_pointers_));
  }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    if (spec.host == HostAccess::kRequired && !host_pointers_)
      return Error(Code::kUnsupported, Layer::kDevice, "{} bytes with a host pointer, and this memory has none",
                   spec.bytes);
    auto block = host_->allocate(spec);
    if (block && !spec.zero) std::memset(block->host, 0xa5, spec.bytes);  // so that a test sees what was never written
    if (block) hide(*block);
    return block;
  }
  void free_block(const Block& block, Timepoint) noexcept override {
    Block whole = block;
    whole.host = reinterpret_cast<std::byte*>(block.handle);
    whole.flags = BlockFlags::kHostPointer | BlockFlags::kHostTransfer;
    host_->release(whole);
  }
  Result<std::unique_ptr<Queue>> create_queue() override {
    return std::unique_ptr<Queue>(new LaggingQueue(*this, queues_));
  }
  std::unique_ptr<Residency> make_residency() override { return std::make_unique<CountingResidency>(); }

 private:
  explicit LaggingDevice(bool host_pointers)
      : Device("LAGGING", {}), host_(berth::device("CPU").value()), host_pointers_(host_pointers) {}

  void hide(Block& block) const {
    if (host_pointers_) return;
    block.host = nullptr;
    block.flags = static_cast<BlockFlags>(static_cast<int>(block.flags) &
                                          ~static_cast<int>(BlockFlags::kHostPointer | BlockFlags::kHostTransfer));
  }

  const std::shared_ptr<LaggingQueues> queues_ = std::make_shared<LaggingQueues>();
  DevicePtr host_;
  bool host_pointers_;
};

}  // namespace berth::doubles
