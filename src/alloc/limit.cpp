#include "berth/alloc/limit.h"

#include <utility>

#include "berth/memory/out_of_memory.h"

namespace berth {

Limit::Limit(AllocatorPtr inner, std::size_t bytes, PressureCallback on_pressure)
    : AllocatorAdaptor(std::move(inner)), on_pressure_(std::move(on_pressure)), accounting_(bytes) {}

std::shared_ptr<Limit> make_limit(AllocatorPtr inner, std::size_t bytes, Limit::PressureCallback on_pressure) {
  return std::make_shared<Limit>(std::move(inner), bytes, std::move(on_pressure));
}

Result<Block> Limit::allocate(const BlockSpec& spec) {
  const bool fits =
      accounting_.reserve(spec.bytes) || (on_pressure_ && on_pressure_(spec) && accounting_.reserve(spec.bytes));
  if (!fits) return out_of_memory(OutOfMemory::Cause::kBudget, *this, spec, limit_bytes());
  Result<Block> block = Block();
  try {
    block = inner()->allocate(spec);
  } catch (...) {  // a callback of the user threw
    accounting_.cancel(spec.bytes);
    throw;
  }
  if (!block) {
    accounting_.cancel(spec.bytes);
    return block;
  }
  if (block->bytes > spec.bytes && !accounting_.reserve(block->bytes - spec.bytes)) {
    const std::size_t given = block->bytes;
    accounting_.cancel(spec.bytes);
    inner()->release(*block, {});
    return out_of_memory(OutOfMemory::Cause::kBudget, *this, spec, limit_bytes(), given);
  }
  if (block->bytes > 0) accounting_.add(block->label, block->bytes);
  return block;
}

void Limit::release(const Block& block, Timepoint last_use) noexcept {
  if (block.bytes > 0) accounting_.remove(block.label, block.bytes);
  inner()->release(block, last_use);
}

void Limit::explain(OutOfMemory& report) const {
  accounting_.explain(report);
  inner()->explain(report);
}

}  // namespace berth
