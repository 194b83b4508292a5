// Failure on purpose. A FaultTrigger counts calls and says which of them fail; a Fault allocator asks it before each
// allocation. One plan may serve several allocators and devices (see testing.h), so that "the nth call" runs across
// all of them. Any thread; the allocator lives as long as its blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "berth/alloc/adaptor.h"

namespace berth {

class FaultTrigger {
 public:
  // The nth call from now on fails, counted from 1, and none after it. 0: none fails.
  void fail_at(std::uint64_t nth) noexcept;
  // Every nth call fails. 0: none.
  void fail_every(std::uint64_t nth) noexcept;
  void fail_none() noexcept { fail_at(0); }

  // Counts a call; true when it must fail.
  bool next_fails() noexcept;

  std::uint64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }
  std::uint64_t faults() const noexcept { return faults_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> calls_{0}, faults_{0}, at_{0}, every_{0};
};
using FaultTriggerPtr = std::shared_ptr<FaultTrigger>;

class Fault final : public AllocatorAdaptor {
 public:
  // Requires: neither is null.
  Fault(AllocatorPtr inner, FaultTriggerPtr plan) : AllocatorAdaptor(std::move(inner)), plan_(std::move(plan)) {}

  // OutOfMemory with cause kInjected where the plan says so. Zero bytes are not counted.
  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override { inner()->release(block, last_use); }
  std::string_view name() const noexcept override { return "fault"; }

  FaultTrigger& plan() const noexcept { return *plan_; }

 private:
  const FaultTriggerPtr plan_;
};

std::shared_ptr<Fault> make_fault(AllocatorPtr inner, FaultTriggerPtr plan = std::make_shared<FaultTrigger>());

}  // namespace berth
