#include "memory/zero_block.h"

#include "base/try.h"

namespace berth::internal {

Result<void> zero_block(Device& device, const Block& block, std::size_t bytes, std::uint64_t start) {
  BERTH_TRY_ASSIGN(Queue* const queue, device.default_queue());
  Block writable = block;
  writable.usage = Usage::kAll;
  writable.bytes += start;
  BERTH_TRY(queue->fill({.block = writable, .offset = start, .bytes = bytes, .device = &device}, 0));
  return queue->finish();
}

}  // namespace berth::internal
