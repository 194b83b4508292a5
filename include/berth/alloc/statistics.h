// An allocator that counts the calls passing through it, for figures of one part of a program. A call costs a few
// relaxed atomic operations. Any thread may call. It must outlive its blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "berth/alloc/adaptor.h"
#include "berth/memory/accounting.h"

namespace berth {

struct StatisticsCounters : LiveCounters {
  std::uint64_t failures = 0;
  std::uint64_t total_bytes = 0;               // of all allocations so far
  std::array<std::uint64_t, 64> sizes{};       // allocations by size: sizes[k] counts [2^k, 2^(k+1)) bytes
  std::vector<OutOfMemory::Holder> holders{};  // live bytes by label, largest first
};
// Without the tables `sizes` and `holders`.
std::string to_string(const StatisticsCounters& counters);

class Statistics final : public AllocatorAdaptor {
 public:
  // Requires: inner is not null.
  explicit Statistics(AllocatorPtr inner) : AllocatorAdaptor(std::move(inner)) {}

  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override;
  std::string_view name() const noexcept override { return "statistics"; }
  void explain(OutOfMemory& report) const override;
  Result<SharedMemory> share(const Block& block, SharedAccess access) override { return inner()->share(block, access); }

  // A copy of the counters. Each counter is exact; together they are consistent only if no other thread calls
  // meanwhile.
  StatisticsCounters counters() const;

 private:
  Accounting accounting_;
  std::atomic<std::uint64_t> failures_{0}, total_bytes_{0};
  std::array<std::atomic<std::uint64_t>, 64> sizes_{};
};

std::shared_ptr<Statistics> make_statistics(AllocatorPtr inner);

}  // namespace berth
