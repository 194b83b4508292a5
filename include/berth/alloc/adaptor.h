// Base class for allocators that wrap another allocator: it holds the inner allocator and forwards the calls that a
// policy does not override. Any thread may call. An adaptor must outlive the blocks it returned.
#pragma once

#include <utility>

#include "berth/memory/allocator.h"

namespace berth {

class AllocatorAdaptor : public Allocator {
 public:
  Device& device() noexcept override { return inner_->device(); }
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override { return inner_->expected_flags(spec); }
  std::size_t trim(std::size_t keep_bytes = 0) noexcept override { return inner_->trim(keep_bytes); }
  void explain(OutOfMemory& report) const override { inner_->explain(report); }

  const AllocatorPtr& inner() const noexcept { return inner_; }

 protected:
  // Requires: inner is not null.
  explicit AllocatorAdaptor(AllocatorPtr inner) : inner_(std::move(inner)) {}

 private:
  const AllocatorPtr inner_;
};

}  // namespace berth
