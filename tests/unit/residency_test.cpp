#include "berth/residency.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "berth/buffer.h"
#include "devices/cpu/cpu_device.h"
#include "support.h"
#include "support/kernel_pages.h"

namespace berth {
namespace {

using test::fails_with;

// A CPU device of its own, not the shared one, with residency on.
DevicePtr resident_cpu() {
  DevicePtr device = cpu::open().value();
  device->keep_resident().value();
  return device;
}

void submit_something(const QueuePtr& queue, const Buffer& buffer) {
  ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
  ASSERT_TRUE(queue->submit());
}

TEST(Residency, CommitsOnceForAHundredAllocationsAndAHundredDrops) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  for (int i = 0; i < 100; ++i) Buffer::allocate(cpu, u8, {100}).value();
  ASSERT_TRUE(queue->submit());
  const ResidencyCounters counters = cpu->residency()->counters();
  EXPECT_EQ(counters.added, 100u);
  EXPECT_EQ(counters.removed, 100u);
  EXPECT_EQ(counters.commits, 1u);
  EXPECT_EQ(counters.members, 0u);
}

TEST(Residency, CommitsNothingWhenNothingIsPending) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {100}).value();
  submit_something(queue, buffer);
  submit_something(queue, buffer);
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->counters().commits, 1u);
}

TEST(Residency, IsNotAddedToByCopiesAndViews) {
  const DevicePtr cpu = resident_cpu();
  const Buffer buffer = Buffer::allocate(cpu, u8, {100}).value();
  const Buffer copy = buffer;
  const Buffer view = buffer.view(0, 50).value();
  EXPECT_EQ(cpu->residency()->counters().added, 1u);
}

TEST(Residency, DoesNotGrowWithPairsBetweenSubmits) {
  const DevicePtr cpu = resident_cpu();
  for (int i = 0; i < 100'000; ++i) {
    const Block block{.handle = static_cast<std::uint64_t>(i + 1) << 20, .bytes = 1};
    cpu->residency()->add(block);
    cpu->residency()->remove(block);
  }
  EXPECT_EQ(cpu->residency()->counters().members, 0u);
  EXPECT_EQ(cpu->residency()->counters().added, 100'000u);
  ASSERT_TRUE(cpu->make_queue().value()->submit());
  EXPECT_EQ(cpu->residency()->counters().commits, 1u);
}

TEST(Residency, AddsTheSameBlockOnce) {
  const DevicePtr cpu = resident_cpu();
  const Block block{.handle = 1 << 20, .bytes = 1};
  cpu->residency()->add(block);
  cpu->residency()->add(block);
  EXPECT_EQ(cpu->residency()->counters().added, 1u);
  cpu->residency()->remove(block);
  cpu->residency()->remove(block);
  EXPECT_EQ(cpu->residency()->counters().removed, 1u);
}

TEST(Residency, MustBeAskedForBeforeMemoryIsAllocated) {
  const DevicePtr cpu = cpu::open().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {100}).value();
  EXPECT_TRUE(fails_with(cpu->keep_resident(), Code::kInvalidArgument));
}

TEST(Residency, IsTurnedOffByTheEnvironment) {
  setenv("BERTH_RESIDENCY", "0", 1);
  EXPECT_FALSE(residency_allowed());
  EXPECT_TRUE(fails_with(cpu::open().value()->keep_resident(), Code::kUnsupported));
  unsetenv("BERTH_RESIDENCY");
  EXPECT_TRUE(residency_allowed());
}

TEST(Residency, IsRenewedWhileNothingIsSubmittedUntilTold) {
  const DevicePtr cpu = cpu::open().value();
  EXPECT_TRUE(fails_with(cpu->keep_alive(std::chrono::milliseconds(1)), Code::kUnsupported));
  ASSERT_TRUE(cpu->keep_resident());
  const Buffer buffer = Buffer::allocate(cpu, u8, {1 << 20}).value();
  ASSERT_TRUE(cpu->default_queue().value()->submit());
  ASSERT_TRUE(cpu->keep_alive(std::chrono::milliseconds(1)));
  while (cpu->residency()->counters().renewals < 3) std::this_thread::yield();
  ASSERT_TRUE(cpu->keep_alive(std::chrono::milliseconds(0)));
  const std::uint64_t renewals = cpu->residency()->counters().renewals;
  EXPECT_EQ(cpu->residency()->counters().commits, 1u) << "renewing is no commit";
  // The device ends its thread, however long that would have slept.
  ASSERT_TRUE(cpu->keep_alive(std::chrono::hours(1)));
  EXPECT_EQ(cpu->residency()->counters().renewals, renewals);
}

TEST(Residency, IsNotRenewedWhileWorkIsSubmitted) {
  CountingResidency set;
  EXPECT_FALSE(set.was_active());
  ASSERT_TRUE(set.commit());
  EXPECT_TRUE(set.was_active());
  EXPECT_FALSE(set.was_active());
}

TEST(Residency, IsUnsupportedOnDisk) {
  const test::TemporaryFolder folder;
  const DevicePtr disk = device("DISK:" + folder.write("file", test::counting_bytes(10))).value();
  EXPECT_TRUE(fails_with(disk->keep_resident(), Code::kUnsupported));
}

// How many of the buffer's pages the kernel has in memory.
std::size_t resident_pages(const Buffer& buffer) {
  std::vector<unsigned char> pages((buffer.size() + 4095) / 4096);
  EXPECT_EQ(mincore(buffer.as_raw_ptr(), buffer.size(), pages.data()), 0);
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
}

TEST(CpuResidency, FaultsMemoryInAndLocksItAtTheSubmit) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {std::size_t{4} << 20}).value();
  EXPECT_LE(resident_pages(buffer), 1u);  // a debug build's guard shares a page with the end
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(resident_pages(buffer), 1024u);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these turn mlock into nothing
  if (cpu->residency()->report().left.empty()) {
    EXPECT_EQ(test::kernel_kib(buffer.as_raw_ptr(), "Locked"), 4096u);
  }
#endif
}

TEST(CpuResidency, UnlocksWhatIsRemoved) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {std::size_t{4} << 20}).value();
  ASSERT_TRUE(queue->submit());
  cpu->residency()->remove(buffer.window().value().block);
  EXPECT_EQ(test::kernel_kib(buffer.as_raw_ptr(), "Locked"), 0u);
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 0u);
}

TEST(Residency, GivesUpTheLeastRecentlyUsedWhenTheBudgetIsFull) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  std::vector<std::uint64_t> told;
  cpu->residency()->set_budget(250, [&](std::span<const Block> blocks) {
    for (const Block& block : blocks) told.push_back(block.handle);
  });
  const Buffer a = Buffer::allocate(cpu, u8, {100}, {.label = "a"}).value();
  const Buffer b = Buffer::allocate(cpu, u8, {100}, {.label = "b"}).value();
  submit_something(queue, b);
  submit_something(queue, a);
  EXPECT_TRUE(told.empty());
  const Buffer c = Buffer::allocate(cpu, u8, {100}, {.label = "c"}).value();
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(told, std::vector{b.native_handle()});
  const ResidencyReport report = cpu->residency()->report();
  ASSERT_EQ(report.left.size(), 1u);
  EXPECT_EQ(report.left[0].label.text(), "b");
  EXPECT_EQ(report.resident_bytes, 200u);
  // With room again, what was left out comes back.
  cpu->residency()->set_budget(0);
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 300u);
  EXPECT_TRUE(cpu->residency()->report().left.empty());
}

TEST(Residency, KeepsHigherPrioritiesWhenTheBudgetIsFull) {
  const DevicePtr cpu = resident_cpu();
  cpu->residency()->set_budget(100);
  std::vector<std::byte> memory(200);
  const auto block = [&](std::size_t at) {
    return Block{
        .handle = reinterpret_cast<std::uint64_t>(memory.data() + at), .host = memory.data() + at, .bytes = 100};
  };
  cpu->residency()->add(block(0), 5);
  cpu->residency()->add(block(100), 1);
  ASSERT_TRUE(cpu->residency()->commit());
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 100u);
  cpu->residency()->remove(block(100));
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 100u);
  cpu->residency()->remove(block(0));
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 0u);
}

// A backend whose driver fails once.
class FailingResidency final : public Residency {
 public:
  bool fail = true;
  int put_blocks = 0;

 protected:
  Result<void> put(std::span<const Block> blocks, std::vector<ResidencyReport::Left>&) override {
    if (fail) return Error(Code::kDriver, Layer::kDevice, "no");
    put_blocks += static_cast<int>(blocks.size());
    return {};
  }
  void take(const Block&) noexcept override {}
};

TEST(Residency, KeepsItsMarksWhenTheDriverFails) {
  FailingResidency set;
  set.add({.handle = 1, .bytes = 1});
  EXPECT_TRUE(fails_with(set.commit(), Code::kDriver));
  EXPECT_EQ(set.counters().commits, 0u);
  set.fail = false;
  EXPECT_TRUE(set.commit());
  EXPECT_EQ(set.put_blocks, 1);
  EXPECT_EQ(set.counters().commits, 1u);
}

TEST(Residency, PutsABlockThatCameTwiceOnlyOnce) {
  FailingResidency set;
  set.fail = false;
  set.add({.handle = 1, .bytes = 1});
  set.remove({.handle = 1, .bytes = 1});
  set.add({.handle = 1, .bytes = 1});
  EXPECT_TRUE(set.commit());
  EXPECT_EQ(set.put_blocks, 1);
}

}  // namespace
}  // namespace berth
