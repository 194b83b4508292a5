// A byte limit around an allocator: a request that would take what is live past it is refused with an explanation.
// It charges Block::bytes, which over a pool is what was asked for and over a device is what the device gave. Any
// thread; lives as long as its blocks.
#pragma once

#include <functional>
#include <memory>

#include "berth/alloc/adaptor.h"
#include "berth/memory/accounting.h"

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

  std::size_t limit_bytes() const noexcept { return accounting_.limit(); }
  LiveCounters counters() const noexcept { return accounting_.counters(); }

 private:
  const PressureCallback on_pressure_;
  Accounting accounting_;
};

std::shared_ptr<Limit> make_limit(AllocatorPtr inner, std::size_t bytes, Limit::PressureCallback on_pressure = {});

}  // namespace berth
