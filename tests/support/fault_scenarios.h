// What every device's fault sweep does. Each returns the first error; data that arrives must be right.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/try.h"
#include "berth/berth.h"

namespace berth::test {

// `add` writes its first argument plus a constant to its second, as the conformance suite's kernel does; `target` says
// how the second is allocated.
inline Result<void> add_on_one_queue_and_read_on_another(Queue& queue, const DevicePtr& device, const Kernel& add,
                                                         const BufferOptions& target) {
  BERTH_TRY_ASSIGN(const QueuePtr other, device->make_queue());
  BERTH_TRY_ASSIGN(const Buffer a, Buffer::allocate(device, u32, {256}, {.zero = true}));
  BERTH_TRY_ASSIGN(const Buffer b, Buffer::allocate(device, u32, {256}, target));
  BERTH_TRY_ASSIGN(const Window from, a.window());
  BERTH_TRY_ASSIGN(const Window to, b.window());
  const std::uint32_t constant = 7;
  BERTH_TRY(queue.launch(add, std::array{KernelArgument{from, Access::kRead}, KernelArgument{to, Access::kWrite}},
                         {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  BERTH_TRY_ASSIGN(const Timepoint added, queue.submit());
  BERTH_TRY(other->wait_for(added));
  std::vector<std::uint32_t> seen(256);
  BERTH_TRY(other->read(to, std::as_writable_bytes(std::span(seen))));
  BERTH_TRY(other->finish());
  EXPECT_EQ(seen, std::vector<std::uint32_t>(256, 7));
  return {};
}

}  // namespace berth::test
