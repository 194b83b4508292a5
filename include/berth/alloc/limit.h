// An allocator with a byte limit: it refuses, with an explanation, requests that would raise the live bytes above the
// limit. It counts Block::bytes, which is the requested size above a pool and the provided size above a device. Any
// thread may call. It must outlive its blocks.
#pragma once

#include <functional>
#include <memory>

#include "berth/alloc/adaptor.h"
#include "berth/memory/accounting.h"

namespace berth {

class Limit final : public AllocatorAdaptor {
 public:
  // Called when the limit refuses a request. Returns whether it released something; the request is then retried once.
  using PressureCallback = std::function<bool(const BlockSpec&)>;

  // Requires: inner is not null. A limit of 0 refuses every request except those for zero bytes.
  Limit(AllocatorPtr inner, std::size_t bytes, PressureCallback on_pressure = {});

  // Fails like the inner allocator, and with kOutOfMemory of cause kBudget.
  Result<Block> allocate(const BlockSpec& spec) override;
  void release(const Block& block, Timepoint last_use = {}) noexcept override;
  std::string_view name() const noexcept override { return "limit"; }
  void explain(OutOfMemory& report) const override;
  Result<SharedMemory> share(const Block& block, SharedAccess access) override { return inner()->share(block, access); }

  std::size_t limit_bytes() const noexcept { return accounting_.limit(); }
  LiveCounters counters() const noexcept { return accounting_.counters(); }

 private:
  const PressureCallback on_pressure_;
  Accounting accounting_;
};

std::shared_ptr<Limit> make_limit(AllocatorPtr inner, std::size_t bytes, Limit::PressureCallback on_pressure = {});

}  // namespace berth
