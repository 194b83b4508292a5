// What the replay tests stand on: memory whose every call can be seen and refused, and the simplest planner there is.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "berth/memory/allocator.h"
#include "berth/plan/plan.h"

namespace berth::testing {

class FakeMemory : public Allocator {
 public:
  Result<Block> allocate(const BlockSpec& spec) override {
    const std::lock_guard guard(mutex_);
    if (fail_after == 0 || spec.bytes > most_bytes)
      return Error(Code::kOutOfMemory, Layer::kAllocator, "asked for {b}, there is none", spec.bytes);
    if (fail_after > 0) --fail_after;
    ++allocations;
    const std::size_t bytes = (spec.bytes + spec.alignment - 1) / spec.alignment * spec.alignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(spec.alignment, bytes));
    live_[memory] = spec.bytes;
    ever_.insert(memory);
    Block block;
    block.handle = reinterpret_cast<std::uintptr_t>(memory);
    block.host = memory;
    block.bytes = spec.bytes;
    return block;
  }
  void release(const Block& block, Timepoint) noexcept override {
    const std::lock_guard guard(mutex_);
    live_.erase(block.host);
    std::free(block.host);
  }
  Device& device() noexcept override { std::abort(); }
  std::string_view name() const noexcept override { return "fake"; }
  std::size_t trim(std::size_t keep_bytes) noexcept override {
    const std::lock_guard guard(mutex_);
    ++trims;
    trimmed_to = keep_bytes;
    return 0;
  }
  ~FakeMemory() override {
    for (const auto& [memory, bytes] : live_) std::free(memory);
  }

  bool holds(const void* memory) const {
    const std::lock_guard guard(mutex_);
    const auto* at = static_cast<const std::byte*>(memory);
    return std::any_of(live_.begin(), live_.end(),
                       [&](const auto& block) { return at >= block.first && at < block.first + block.second; });
  }
  bool touched(const void* memory) const {
    const std::lock_guard guard(mutex_);
    return ever_.count(const_cast<std::byte*>(static_cast<const std::byte*>(memory))) != 0;
  }
  std::size_t live_count() const { return live_.size(); }
  std::size_t live_bytes() const {
    std::size_t sum = 0;
    for (const auto& block : live_) sum += block.second;
    return sum;
  }

  int allocations = 0;
  int trims = 0;
  std::size_t trimmed_to = 0;                // the argument of the last trim
  int fail_after = -1;                       // allocations that still succeed; -1: all
  std::size_t most_bytes = ~std::size_t{0};  // of one allocation

 private:
  mutable std::mutex mutex_;
  std::map<std::byte*, std::size_t> live_;
  std::set<std::byte*> ever_;
};

// Each node at the lowest offset that no earlier node alive at the same time uses. O(n^2).
inline Result<MemoryPlan> first_fit(const PlanProblem& problem) {
  MemoryPlan plan;
  plan.slots.resize(problem.lifetimes.size());
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    const Lifetime& node = problem.lifetimes[i];
    if (node.bytes == 0) continue;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    for (std::size_t j = 0; j < i; ++j) {
      const Lifetime& other = problem.lifetimes[j];
      if (other.bytes != 0 && other.first < node.last && node.first < other.last)
        taken.emplace_back(plan.slots[j].offset, plan.slots[j].offset + other.bytes);
    }
    std::sort(taken.begin(), taken.end());
    std::uint64_t offset = 0;
    for (const auto& [begin, end] : taken)
      if (begin < offset + node.bytes)
        offset = std::max(offset, (end + node.alignment - 1) / node.alignment * node.alignment);
    plan.slots[i] = {.offset = offset, .bytes = node.bytes, .block = 0};
    plan.size = std::max(plan.size, offset + node.bytes);
  }
  if (plan.size != 0) plan.blocks.push_back({.bytes = plan.size});
  plan.optimal = plan.size == 0;  // the bound is left at zero
  plan.fingerprint = fingerprint(problem);
  return plan;
}

}  // namespace berth::testing
