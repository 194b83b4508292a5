// A device on host memory whose queues finish nothing until the test says so: for everything that depends on work
// still being in flight. Transfers are done at once; only the moments lag.
#pragma once

#include <atomic>
#include <memory>

#include "berth/memory/device.h"
#include "berth/memory/registry.h"

namespace berth::doubles {

class LaggingQueue final : public Queue {
 public:
  LaggingQueue(Device& device, QueuePtr host) : Queue(device), host_(std::move(host)) {}
  ~LaggingQueue() override {
    reach_all();
    close();
  }

  // Work up to `value` counts as done.
  void reach(Timepoint moment) noexcept { reached_.store(moment.value(), std::memory_order_release); }
  void reach_all() noexcept { reached_.store(submitted_value_.load(), std::memory_order_release); }

 protected:
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    return host_->write(bare(target), source);
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    return host_->read(bare(source), target);
  }
  Result<void> do_copy(const Window& source, const Window& target) override {
    return host_->copy(bare(source), bare(target));
  }
  Result<void> do_fill(const Window& target, std::uint8_t value) override { return host_->fill(bare(target), value); }
  Result<void> do_submit(std::uint64_t value) override {
    submitted_value_.store(value);
    return {};
  }
  // A wait is the test saying so.
  Result<void> do_wait(std::uint64_t value) override {
    std::uint64_t seen = reached_.load();
    while (seen < value && !reached_.compare_exchange_weak(seen, value)) {
    }
    return {};
  }
  std::uint64_t poll() noexcept override { return reached_.load(std::memory_order_acquire); }

 private:
  static Window bare(Window window) {
    window.owner = nullptr;
    window.device = nullptr;
    return window;
  }

  QueuePtr host_;
  std::atomic<std::uint64_t> reached_{0}, submitted_value_{0};
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

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    auto block = host_->allocate(spec);
    // The transfers of the double go through the host queue, which needs the address and not the flags.
    if (block && !host_pointers_) block->flags = BlockFlags::kNone;
    return block;
  }
  void free_block(const Block& block, Timepoint) noexcept override { host_->release(block); }
  Result<std::unique_ptr<Queue>> create_queue() override {
    auto host = host_->make_queue();
    if (!host) return host.error();
    return std::unique_ptr<Queue>(new LaggingQueue(*this, *host));
  }

 private:
  explicit LaggingDevice(bool host_pointers)
      : Device("LAGGING", {}), host_(berth::device("CPU").value()), host_pointers_(host_pointers) {}

  DevicePtr host_;
  bool host_pointers_;
};

}  // namespace berth::doubles
