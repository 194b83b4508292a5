#include "engines/faulted_memory.h"

#include <cstdint>
#include <utility>

#include "base/os/system_pages.h"

namespace berth::engines {

using namespace internal;

namespace {

class FaultedMemory final : public Allocator {
 public:
  explicit FaultedMemory(AllocatorPtr inner) : inner_(std::move(inner)) {}

  Result<Block> allocate(const BlockSpec& spec) override {
    Result<Block> block = inner_->allocate(spec);
    if (block && block->host != nullptr) fault_in(block->host, spec.bytes);
    return block;
  }
  void release(const Block& block, Timepoint last_use) noexcept override { inner_->release(block, last_use); }
  Device& device() noexcept override { return inner_->device(); }
  std::string_view name() const noexcept override { return "faulted"; }
  std::size_t trim(std::size_t keep_bytes) noexcept override { return inner_->trim(keep_bytes); }
  void explain(OutOfMemory& report) const override { inner_->explain(report); }

 private:
  static void fault_in(std::byte* memory, std::size_t bytes) noexcept {
    const std::uintptr_t page = page_bytes();
    const auto begin = reinterpret_cast<std::uintptr_t>(memory) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes + page - 1) / page * page;
    // A kernel that does not know this (before 5.14) faults the pages in when they are used.
    static_cast<void>(populate_pages(reinterpret_cast<void*>(begin), end - begin));
  }

  AllocatorPtr inner_;
};

}  // namespace

AllocatorPtr faulted(AllocatorPtr inner) {
  return std::make_shared<FaultedMemory>(std::move(inner));
}

}  // namespace berth::engines
