// The allocator of one imported block: release() calls the importer's callback. It keeps the device alive and forwards
// other requests to it.
#pragma once

#include <functional>
#include <utility>

#include "berth/memory/device.h"
#include "memory/uses.h"

namespace berth::internal {

class ImportAllocator final : public Allocator {
 public:
  explicit ImportAllocator(DevicePtr device) noexcept : device_(std::move(device)) {}
  // From here on release() of the block, and nobody else, calls it.
  void take_over(std::function<void()>& release) noexcept { release_.swap(release); }

  Result<Block> allocate(const BlockSpec& spec) override { return device_->allocate(spec); }
  void release(const Block& block, Timepoint last_use) noexcept override {
    if (!block.has(BlockFlags::kForeign)) {
      device_->release(block, last_use);  // a block returned by allocate() above
      return;
    }
    // The owner may reuse the memory as soon as it is notified, so work that is only recorded must run before that. If
    // it fails, its queue or the device is broken and will not run it later either.
    static_cast<void>(internal::finish(last_use));
    device_->forget_import(block);
    device_->count_foreign(block.bytes, -1);
    if (release_) std::exchange(release_, nullptr)();
  }
  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "import"; }
  void explain(OutOfMemory& report) const override { device_->explain(report); }

 private:
  DevicePtr device_;
  std::function<void()> release_;
};

}  // namespace berth::internal
