// Loads a small model to a device and compares what arrived with what was saved.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "berth/weights/weights.h"
#include "support/support.h"

namespace berth::test {

inline void expect_weights_to_arrive(const DevicePtr& device, const LoadOptions& options = {.threads = 2}) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "a.safetensors").string();
  const DevicePtr cpu = berth::device("CPU").value();
  std::vector<Buffer> buffers;
  for (const std::size_t count : {5u, 3'000'000u, 1u}) {  // one of them longer than a piece
    buffers.push_back(Buffer::allocate(cpu, u32, {count}).value());
    auto values = buffers.back().as_slice_mut<std::uint32_t>().value();
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u);
  }
  const std::vector<NamedBuffer> tensors = {{"a", buffers[0]}, {"b", buffers[1]}, {"c", buffers[2]}};
  ASSERT_TRUE(save_safetensors(path, tensors));
  const LoadedTensors loaded = open_weights(path).value().load_all(device, options).value();
  ASSERT_EQ(loaded.buffers.size(), buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(&loaded.buffers[i].device(), device.get());
    std::vector<std::byte> back(loaded.buffers[i].size());
    ASSERT_TRUE(loaded.buffers[i].copyout(back));
    const auto original = buffers[i].as_host_bytes().value();
    EXPECT_TRUE(std::equal(back.begin(), back.end(), original.begin(), original.end())) << i;
  }
}

}  // namespace berth::test
