// Fault injection. A FaultTrigger counts calls and decides which of them fail; a Fault allocator consults it before
// each allocation. Several allocators and devices can share one trigger (see testing.h), so that "the nth call" counts
// the calls of all of them. Any thread may call. The allocator must outlive its blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "berth/alloc/adaptor.h"

namespace berth {

class FaultTrigger {
 public:
  // Makes the nth call from now fail, counting from 1, and no other. 0: none fails.
  void fail_at(std::uint64_t nth) noexcept;
  // Makes every nth call fail. 0: none.
  void fail_every(std::uint64_t nth) noexcept;
  void fail_none() noexcept { fail_at(0); }

  // Counts a call. Returns true if it must fail.
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

  // kOutOfMemory with cause kInjected if the trigger says so. Requests for zero bytes are not counted.
  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override { inner()->release(block, last_use); }
  std::string_view name() const noexcept override { return "fault"; }
  Result<SharedMemory> share(const Block& block, SharedAccess access) override { return inner()->share(block, access); }

  FaultTrigger& plan() const noexcept { return *plan_; }

 private:
  const FaultTriggerPtr plan_;
};

std::shared_ptr<Fault> make_fault(AllocatorPtr inner, FaultTriggerPtr plan = std::make_shared<FaultTrigger>());

}  // namespace berth
