// An allocator without memory: a program runs against it to learn how much memory it would need. Its blocks have a size
// and a unique handle, no host pointer, and no usage bits, so every access to their bytes fails with kNotCpuAccessible
// or kInvalidUsage and never crashes. Any thread may call. It must outlive its blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "berth/alloc/adaptor.h"
#include "berth/memory/accounting.h"

namespace berth {

class DryRun final : public AllocatorAdaptor {
 public:
  // `like` is the allocator or device that the dry run replaces; only its device() is used. Requires: not null.
  explicit DryRun(AllocatorPtr like) : AllocatorAdaptor(std::move(like)) {}

  // kInvalidArgument for an alignment that is not a power of two. Never fails for lack of memory.
  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override;
  std::string_view name() const noexcept override { return "dry run"; }
  BlockFlags expected_flags(const BlockSpec&) noexcept override { return BlockFlags::kNone; }
  std::size_t trim(std::size_t) noexcept override { return 0; }
  void explain(OutOfMemory& report) const override;

  LiveCounters counters() const noexcept { return accounting_.counters(); }

 private:
  std::atomic<std::uint64_t> next_{1};
  Accounting accounting_;
};

std::shared_ptr<DryRun> make_dry_run(AllocatorPtr like);

}  // namespace berth
