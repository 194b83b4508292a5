// The base of allocators that stand around another allocator: it holds the inner one and hands on what the
// policy does not care about. Any thread; lives as long as its blocks.
#pragma once

#include <utility>

#include "berth/memory/allocator.h"

namespace berth {

class AllocatorAdaptor : public Allocator {
 public:
  Device& device() noexcept override { return inner_->device(); }
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
