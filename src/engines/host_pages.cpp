#include "engines/host_pages.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "base/os/system_pages.h"
#include "base/round_up.h"
#include "berth/alloc/adaptor.h"
#include "berth/memory/block.h"

namespace berth::internal {
namespace {

// Pages that the range shares with its neighbours are faulted in with it.
void fault_in(const Block& block, std::uint64_t offset, std::uint64_t bytes) {
  if (block.host == nullptr) return;
  const std::uintptr_t page = page_bytes();
  const auto begin = (reinterpret_cast<std::uintptr_t>(block.host) + offset) / page * page;
  const auto end = round_up(reinterpret_cast<std::uintptr_t>(block.host) + offset + bytes, page);
  // A kernel that does not know this (before 5.14) faults the pages in when they are used.
  static_cast<void>(populate_pages(reinterpret_cast<void*>(begin), end - begin));
}

// Pages that the range shares with its neighbours stay.
void give_back(const Block& block, std::uint64_t offset, std::uint64_t bytes) {
  if (block.host == nullptr) return;
  const std::uintptr_t page = page_bytes();
  const auto begin = round_up(reinterpret_cast<std::uintptr_t>(block.host) + offset, page);
  const auto end = (reinterpret_cast<std::uintptr_t>(block.host) + offset + bytes) / page * page;
  if (begin < end) static_cast<void>(give_back_pages(reinterpret_cast<void*>(begin), end - begin));
}

class ReadablePastEnd final : public AllocatorAdaptor {
 public:
  ReadablePastEnd(AllocatorPtr inner, std::uint64_t bytes) : AllocatorAdaptor(std::move(inner)), bytes_(bytes) {}
  Result<Block> allocate(const BlockSpec& spec) override {
    if (spec.bytes > SIZE_MAX - bytes_)
      return Error(Code::kOutOfMemory, Layer::kEngine, "asked for {b} and {b} after them: no system has that much",
                   spec.bytes, bytes_);
    BlockSpec longer = spec;
    if (spec.bytes != 0) longer.bytes += bytes_;
    return inner()->allocate(longer);
  }
  void release(const Block& block, Timepoint last_use) noexcept override { inner()->release(block, last_use); }
  std::string_view name() const noexcept override { return "readable past the end"; }

 private:
  std::uint64_t bytes_;
};

}  // namespace

ArenaPages host_pages() {
  return {.fault_in = fault_in, .give_back = give_back};
}

AllocatorPtr readable_past_end(AllocatorPtr inner, std::uint64_t bytes) {
  return std::make_shared<ReadablePastEnd>(std::move(inner), bytes);
}

}  // namespace berth::internal
