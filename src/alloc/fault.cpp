#include "berth/alloc/fault.h"

#include <utility>

#include "berth/memory/out_of_memory.h"

namespace berth {

std::shared_ptr<Fault> make_fault(AllocatorPtr inner, FaultTriggerPtr plan) {
  return std::make_shared<Fault>(std::move(inner), std::move(plan));
}

void FaultTrigger::fail_at(std::uint64_t nth) noexcept {
  calls_.store(0, std::memory_order_relaxed);
  faults_.store(0, std::memory_order_relaxed);
  at_.store(nth, std::memory_order_relaxed);
  every_.store(0, std::memory_order_relaxed);
}

void FaultTrigger::fail_every(std::uint64_t nth) noexcept {
  fail_at(0);
  every_.store(nth, std::memory_order_relaxed);
}

bool FaultTrigger::next_fails() noexcept {
  const std::uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint64_t every = every_.load(std::memory_order_relaxed);
  const bool fails = call == at_.load(std::memory_order_relaxed) || (every > 0 && call % every == 0);
  if (fails) faults_.fetch_add(1, std::memory_order_relaxed);
  return fails;
}

Result<Block> Fault::allocate(const BlockSpec& spec) {
  if (spec.bytes > 0 && plan_->next_fails()) return out_of_memory(OutOfMemory::Cause::kInjected, *this, spec);
  return inner()->allocate(spec);
}

}  // namespace berth
