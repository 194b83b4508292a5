// A device whose memory the host cannot see and whose queues do nothing before submit: what a driver would be, without
// one. Its limits are the test's to choose.
#pragma once

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "berth/memory/device.h"

namespace berth {

class OpaqueQueue final : public Queue {
 public:
  explicit OpaqueQueue(Device& device) : Queue(device) {}
  ~OpaqueQueue() override { close(); }

 protected:
  static std::byte* address(const Window& window) {
    return reinterpret_cast<std::byte*>(window.block.handle) + window.offset;
  }
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    work_.push_back([to = address(target), bytes = std::vector<std::byte>(source.begin(), source.end())] {
      std::memcpy(to, bytes.data(), bytes.size());
    });
    return {};
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    work_.push_back([from = address(source), target] { std::memcpy(target.data(), from, target.size()); });
    return {};
  }
  Result<void> do_copy(const Window& source, const Window& target) override {
    work_.push_back(
        [from = address(source), to = address(target), count = source.bytes] { std::memmove(to, from, count); });
    return {};
  }
  Result<void> do_fill(const Window& target, std::uint8_t value) override {
    work_.push_back([to = address(target), count = target.bytes, value] { std::memset(to, value, count); });
    return {};
  }
  Result<void> do_submit(std::uint64_t value) override {
    for (const auto& command : work_) command();
    work_.clear();
    done_ = value;
    return {};
  }
  Result<void> do_wait(std::uint64_t) override { return {}; }
  std::uint64_t poll() noexcept override { return done_; }

 private:
  std::vector<std::function<void()>> work_;
  std::atomic<std::uint64_t> done_{0};
};

class OpaqueDevice final : public Device {
 public:
  explicit OpaqueDevice(DeviceLimits limits = {}) : Device("OPAQUE", limits) {}
  BlockFlags expected_flags(const BlockSpec&) noexcept override { return BlockFlags::kNone; }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    // Filled, so that a test sees what was never written.
    void* memory =
        std::aligned_alloc(spec.alignment, (spec.bytes + spec.alignment - 1) / spec.alignment * spec.alignment);
    std::memset(memory, spec.zero ? 0 : 0xa5, spec.bytes);
    return Block{.handle = reinterpret_cast<std::uint64_t>(memory), .bytes = spec.bytes};
  }
  void free_block(const Block& block, Timepoint) noexcept override { std::free(reinterpret_cast<void*>(block.handle)); }
  Result<std::unique_ptr<Queue>> create_queue() override { return std::unique_ptr<Queue>(new OpaqueQueue(*this)); }
};

inline DevicePtr opaque_device(DeviceLimits limits = {}) {
  return share_device(std::make_unique<OpaqueDevice>(limits));
}

}  // namespace berth
