// What is particular to CPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>

#include "base/os/system_pages.h"
#include "berth/berth.h"
#include "berth/memory/address_space.h"
#include "devices/host/host_memory.h"
#include "support/support.h"

namespace berth {
namespace {

#ifdef __linux__
// Pages of addresses that this process has.
std::size_t address_pages() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(CpuDevice, GivesLargeBlocksBackToTheSystem) {
  const DevicePtr cpu = device("CPU").value();
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  cpu->release(cpu->allocate({.bytes = kBytes}).value());
  const std::size_t before = address_pages();
  ASSERT_GT(before, 0u);
  for (int i = 0; i < 100; ++i) cpu->release(cpu->allocate({.bytes = kBytes}).value());
  EXPECT_LT(address_pages(), before + 10 * kBytes / 4096) << "100 blocks of 64 MiB were released";
}
#endif

TEST(CpuDevice, HasNoMemoryForMoreThanAFileCanHold) {
  const auto space = device("CPU").value()->make_address_space().value();
  // Beyond the largest file, and a negative number to the system.
  for (const std::size_t bytes : {SIZE_MAX / 2 - 4095, SIZE_MAX / 2 + 1, SIZE_MAX - 4095})
    EXPECT_TRUE(test::fails_with(space->map_shareable(bytes), Code::kOutOfMemory)) << bytes;
}

TEST(CpuQueue, HasDoneItsWorkWhenItIsSubmitted) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {64}).value();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
    EXPECT_FALSE(is_reached(queue->next()));
    EXPECT_TRUE(is_reached(queue->submit().value())) << "nobody waits for it";
  }
}

TEST(HostMemory, HasPagesOfItsOwnFromTheSizeOnThatItSays) {
  using namespace internal;
  for (const std::size_t bytes : {cpu::kMappedBytes - 64, cpu::kMappedBytes, cpu::kMappedBytes + 1}) {
    void* const memory = cpu::allocate_host(bytes, 64, false);
    ASSERT_NE(memory, nullptr);
    if (bytes >= cpu::kMappedBytes) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % page_bytes(), 0u) << bytes;
    }
    std::memset(memory, 1, bytes);
    cpu::free_host(memory, bytes);
  }
}

TEST(HostMemory, RefusesSizesThatNoSumHolds) {
  using namespace internal;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2})
    EXPECT_EQ(cpu::allocate_host(bytes, 64, false), nullptr) << bytes;
  EXPECT_EQ(cpu::allocate_host(cpu::kMappedBytes, std::size_t{1} << 63, false), nullptr);
}

}  // namespace
}  // namespace berth
