// A byte limit around an allocator: a request that would take what is live past it is refused with an explanation.
// It charges Block::bytes, which over a pool is what was asked for and over a device is what the device gave. Any
// thread; lives as long as its blocks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "berth/alloc/adaptor.h"
#include "berth/memory/label_counters.h"

namespace berth {

class Limit final : public AllocatorAdaptor {
 public:
  // Called when the limit refuses; returns whether it released something, in which case the request is looked at
  // once more.
  using PressureCallback = std::function<bool(const BlockSpec&)>;

  // Requires: inner is not null. A limit of 0 refuses every request that is not empty.
  Limit(AllocatorPtr inner, std::size_t bytes, PressureCallback on_pressure = {});

  // Also OutOfMemory with cause kBudget.
  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override;
  std::string_view name() const noexcept override { return "limit"; }
  void explain(OutOfMemory& report) const override;

  std::size_t limit_bytes() const noexcept { return limit_; }
  std::size_t live_bytes() const noexcept { return live_bytes_.load(std::memory_order_relaxed); }
  std::size_t peak_bytes() const noexcept { return peak_bytes_.load(std::memory_order_relaxed); }

 private:
  bool charge(std::size_t bytes) noexcept;

  const std::size_t limit_;
  const PressureCallback on_pressure_;
  std::atomic<std::size_t> live_bytes_{0}, live_count_{0}, peak_bytes_{0};
  LabelCounters labels_;
};

std::shared_ptr<Limit> make_limit(AllocatorPtr inner, std::size_t bytes, Limit::PressureCallback on_pressure = {});

}  // namespace berth
