// Sizes without memory, for dry runs: a program runs against it to learn how much it would take. Its blocks have a
// size and a handle of their own, no host pointer, and usage bits that allow nothing, so that every attempt to
// touch the bytes is NotCpuAccessible or InvalidUsage and never a crash. Any thread; lives as long as its blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "berth/alloc/adaptor.h"
#include "berth/memory/accounting.h"

namespace berth {

class DryRun final : public AllocatorAdaptor {
 public:
  // `like` is the allocator or device that the dry run stands for; it is asked for nothing but its device.
  // Requires: not null.
  explicit DryRun(AllocatorPtr like) : AllocatorAdaptor(std::move(like)) {}

  // InvalidArgument for an alignment that is not a power of two. Never runs out.
  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override;
  std::string_view name() const noexcept override { return "dry run"; }
  std::size_t trim(std::size_t) noexcept override { return 0; }
  void explain(OutOfMemory& report) const override;

  LiveCounters counters() const noexcept { return accounting_.counters(); }

 private:
  std::atomic<std::uint64_t> next_{1};
  Accounting accounting_;
};

std::shared_ptr<DryRun> make_dry_run(AllocatorPtr like);

}  // namespace berth
