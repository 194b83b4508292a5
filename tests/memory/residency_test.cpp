#include "berth/memory/residency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <sstream>
#include <thread>

#include "base/sanitizers.h"
#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "berth/tensor/step_buffers.h"
#include "devices/cpu/cpu_device.h"
#include "support/kernel_pages.h"
#include "support/support.h"

namespace berth {

using namespace internal;

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

// What malloc has handed out now, in all arenas. The sanitizers say 0.
std::size_t heap_bytes() {
  const struct mallinfo2 now = mallinfo2();
  return now.uordblks + now.hblkhd;
}

TEST(Residency, DoesNotGrowWithPairsBetweenSubmits) {
  // Once at addresses of their own, and once at the same one, as an allocator gives it out again.
  for (const std::uint64_t stride : {std::uint64_t{1} << 20, std::uint64_t{0}}) {
    CountingResidency set;
    set.add({.handle = 7, .bytes = 1});  // one that stays
    std::size_t before = 0;
    for (std::uint64_t i = 0; i < 100'000; ++i) {
      if (i == 1000) before = heap_bytes();
      const Block block{.handle = (std::uint64_t{1} << 40) + i * stride, .bytes = 1};
      set.add(block);
      set.remove(block);
    }
    EXPECT_LE(heap_bytes(), before + 4096);
    EXPECT_EQ(set.counters().members, 1u);
    EXPECT_EQ(set.counters().added, 100'001u);
    ASSERT_TRUE(set.commit());
    EXPECT_EQ(set.counters().commits, 1u);
    EXPECT_EQ(set.report().resident_bytes, 1u);
  }
}

TEST(Residency, KeepsAMemberUntilItIsRemovedAsOftenAsItWasAdded) {
  CountingResidency set;
  const Block block{.handle = 1 << 20, .bytes = 10};
  set.add(block);
  set.add(block);
  EXPECT_EQ(set.counters().added, 1u);
  ASSERT_TRUE(set.commit());
  set.remove(block);
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.counters().commits, 1u) << "nothing has changed";
  EXPECT_EQ(set.report().resident_bytes, 10u);
  set.remove(block);
  set.remove(block);
  EXPECT_EQ(set.counters().removed, 1u);
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.report().resident_bytes, 0u);
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
  ASSERT_TRUE(cpu->keep_resident());
  const Buffer buffer = Buffer::allocate(cpu, u8, {1 << 20}).value();
  ASSERT_TRUE(cpu->default_queue().value()->submit());
  cpu->residency()->keep_alive(std::chrono::milliseconds(1));
  while (cpu->residency()->counters().renewals < 3) std::this_thread::yield();
  cpu->residency()->keep_alive(std::chrono::milliseconds(0));
  const std::uint64_t renewals = cpu->residency()->counters().renewals;
  EXPECT_EQ(cpu->residency()->counters().commits, 1u) << "renewing is no commit";
  // The device ends its thread, however long that would have slept.
  cpu->residency()->keep_alive(std::chrono::hours(1));
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
  EXPECT_EQ(test::kernel_kib(buffer.as_raw_ptr(), "Locked"), 0u);
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(resident_pages(buffer), 1024u);
  EXPECT_EQ(cpu->residency()->report().left.size(), 0u) << "this machine locks less than 4 MiB";
  EXPECT_EQ(test::kernel_kib(buffer.as_raw_ptr(), "Locked"), 4096u);
}

TEST(CpuResidency, FaultsInMemoryThatMayOnlyBeRead) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("weights", test::counting_bytes(2 << 20));
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* const pages = mmap(nullptr, 2 << 20, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  ASSERT_NE(pages, MAP_FAILED);
  const DevicePtr cpu = resident_cpu();
  {
    const Buffer weights = Buffer::import(cpu,
                                          {.address = reinterpret_cast<std::uint64_t>(pages),
                                           .bytes = 2 << 20,
                                           .read_only = true,
                                           .release = [&] { munmap(pages, 2 << 20); }},
                                          u8, {2 << 20})
                               .value();
    StepBuffers pool(cpu);
    ASSERT_TRUE(pool.register_existing(weights));
    EXPECT_EQ(test::kernel_kib(pages, "Rss"), 0u);
    ASSERT_TRUE(cpu->make_queue().value()->submit());
    EXPECT_EQ(test::kernel_kib(pages, "Rss"), 2048u) << "mapped, not only in the page cache";
    EXPECT_EQ(test::kernel_kib(pages, "Locked"), 2048u);
  }
}

// Lets this thread lock no more than `bytes`, whoever runs it. Both end with it.
class LockLimit {
 public:
  explicit LockLimit(std::size_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit_), 0);
    const rlimit lower{bytes, limit_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &lower), 0);
    // The capability that knows no limit, of this thread alone.
    EXPECT_EQ(syscall(SYS_capget, &header_, kept_), 0);
    __user_cap_data_struct without[2] = {kept_[0], kept_[1]};
    without[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    EXPECT_EQ(syscall(SYS_capset, &header_, without), 0);
  }
  ~LockLimit() {
    EXPECT_EQ(syscall(SYS_capset, &header_, kept_), 0);
    EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit_), 0);
  }
  LockLimit(const LockLimit&) = delete;
  LockLimit& operator=(const LockLimit&) = delete;

 private:
  rlimit limit_{};
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct kept_[2]{};
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(CpuResidency, LocksTheLargestThatFitAndReportsTheOthers) {
  const LockLimit limit(7 * kMiB);
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer two = Buffer::allocate(cpu, u8, {2 * kMiB}, {.label = "two"}).value();
  const Buffer four = Buffer::allocate(cpu, u8, {4 * kMiB}, {.label = "four"}).value();
  const Buffer nine = Buffer::allocate(cpu, u8, {9 * kMiB}, {.label = "nine"}).value();
  const Buffer five = Buffer::allocate(cpu, u8, {5 * kMiB}, {.label = "five"}).value();
  submit_something(queue, nine);
  const ResidencyReport report = cpu->residency()->report();
  ASSERT_EQ(report.left.size(), 2u);
  EXPECT_EQ(report.left[0].label.text(), "nine");
  EXPECT_EQ(report.left[0].bytes, 9 * kMiB);
  EXPECT_NE(report.left[0].why.find("not locked"), std::string::npos) << report.left[0].why;
  EXPECT_NE(report.left[0].why.find("ulimit -l"), std::string::npos) << report.left[0].why;
  EXPECT_EQ(report.left[1].label.text(), "four");
  EXPECT_EQ(report.resident_bytes, 7 * kMiB);
  EXPECT_EQ(test::kernel_kib(five.as_raw_ptr(), "Locked"), 5u * 1024);
  EXPECT_EQ(test::kernel_kib(two.as_raw_ptr(), "Locked"), 2u * 1024);
  EXPECT_EQ(test::kernel_kib(nine.as_raw_ptr(), "Locked"), 0u);
  EXPECT_EQ(resident_pages(nine), 9 * kMiB / 4096) << "in memory all the same";
  EXPECT_EQ(nine.as_slice<std::uint8_t>().value()[9 * kMiB - 1], 1) << "and the work was done";
  // The report lasts while it is so, whatever is committed meanwhile.
  const Buffer small = Buffer::allocate(cpu, u8, {100}).value();
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->report().left.size(), 2u);
}

TEST(CpuResidency, LocksTheHigherPriorityFirst) {
  const LockLimit limit(5 * kMiB);
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer large = Buffer::allocate(cpu, u8, {5 * kMiB}, {.label = "large"}).value();
  const Buffer dear = Buffer::allocate(cpu, u8, {3 * kMiB}, {.label = "dear"}).value();
  cpu->residency()->set_priority(dear.window().value().block, 1);
  ASSERT_TRUE(queue->submit());
  ASSERT_EQ(cpu->residency()->report().left.size(), 1u);
  EXPECT_EQ(cpu->residency()->report().left[0].label.text(), "large");
  EXPECT_EQ(test::kernel_kib(dear.as_raw_ptr(), "Locked"), 3u * 1024);
}

TEST(CpuResidency, LocksWhatDidNotFitWhenOthersHaveLeft) {
  const LockLimit limit(5 * kMiB);
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  Buffer first = Buffer::allocate(cpu, u8, {4 * kMiB}, {.label = "first"}).value();
  const Buffer second = Buffer::allocate(cpu, u8, {3 * kMiB}, {.label = "second"}).value();
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(cpu->residency()->report().left.size(), 1u);
  first = Buffer();
  ASSERT_TRUE(queue->submit());
  EXPECT_TRUE(cpu->residency()->report().left.empty());
  EXPECT_EQ(test::kernel_kib(second.as_raw_ptr(), "Locked"), 3u * 1024);
}

#if !BERTH_ADDRESS_SANITIZER && !BERTH_THREAD_SANITIZER  // these turn munlock into nothing
TEST(CpuResidency, UnlocksWhatIsRemoved) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {std::size_t{4} << 20}).value();
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(test::kernel_kib(buffer.as_raw_ptr(), "Locked"), 4096u);
  cpu->residency()->remove(buffer.window().value().block);
  EXPECT_EQ(test::kernel_kib(buffer.as_raw_ptr(), "Locked"), 0u);
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 0u);
}
#endif

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

TEST(Residency, BringsBackWhatIsUsedAndGivesUpWhatIsNot) {
  CountingResidency set;
  std::vector<std::uint64_t> told;
  set.set_budget(200, [&](std::span<const Block> blocks) {
    for (const Block& block : blocks) told.push_back(block.handle);
  });
  const auto block = [](std::uint64_t handle) { return Block{.handle = handle, .bytes = 100}; };
  for (const std::uint64_t handle : {1, 2, 3}) set.add(block(handle));
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(told, std::vector<std::uint64_t>{1});
  EXPECT_EQ(set.counters().commits, 1u);
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.counters().commits, 1u) << "nothing has changed";
  set.touch(block(1));
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(told, (std::vector<std::uint64_t>{1, 2})) << "the least recently used made room for it";
  EXPECT_EQ(set.counters().commits, 2u);
  EXPECT_EQ(set.report().resident_bytes, 200u);
  // A use that changes nothing is no commit: both in place have a higher priority.
  set.set_priority(block(1), 1);
  set.set_priority(block(3), 1);
  set.touch(block(2));
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.counters().commits, 2u);
  // Room for it, and it comes.
  set.remove(block(3));
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.report().resident_bytes, 200u);
  EXPECT_TRUE(set.report().left.empty());
}

TEST(Residency, LetsTheCallbackMakeRoomItself) {
  const DevicePtr cpu = resident_cpu();
  const QueuePtr queue = cpu->make_queue().value();
  Buffer old = Buffer::allocate(cpu, u8, {100}, {.label = "old"}).value();
  int calls = 0;
  cpu->residency()->set_budget(150, [&](std::span<const Block> blocks) {
    ++calls;
    EXPECT_EQ(blocks.size(), 1u);
    EXPECT_EQ(blocks[0].handle, old.native_handle());
    old = Buffer();
  });
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(calls, 0);
  const Buffer fresh = Buffer::allocate(cpu, u8, {100}).value();
  ASSERT_TRUE(queue->submit());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(cpu->residency()->report().left.empty()) << "it went before it had to be left out";
  EXPECT_EQ(cpu->residency()->report().resident_bytes, 100u);
}

// While the callback runs, without a lock, the set changes: what is given up then was not in the first choice.
TEST(Residency, TellsTheCallbackOfEveryBlockThatItGivesUp) {
  CountingResidency set;
  const auto block = [](std::uint64_t handle) { return Block{.handle = handle, .bytes = 100}; };
  std::vector<std::uint64_t> told;
  set.set_budget(200, [&](std::span<const Block> blocks) {
    for (const Block& each : blocks) told.push_back(each.handle);
    if (told.size() > 1) return;
    set.touch(block(1));  // another thread uses what was chosen, and adds more
    set.add(block(4));
  });
  for (const std::uint64_t handle : {1, 2, 3}) set.add(block(handle));
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.report().left.size(), 2u);
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, (std::vector<std::uint64_t>{1, 2, 3})) << "1 was announced and stays; 2 and 3 are given up";
  EXPECT_EQ(set.report().resident_bytes, 200u);
  // The next commit announces again what it gives up.
  told = {9};
  set.touch(block(2));
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(told, (std::vector<std::uint64_t>{9, 1}));
}

TEST(Residency, LeavesOutABlockThatIsLargerThanTheBudgetAndNoOther) {
  CountingResidency set;
  set.set_budget(100);
  set.add({.handle = 1, .bytes = 60});
  set.add({.handle = 2, .bytes = 101});
  ASSERT_TRUE(set.commit());
  EXPECT_EQ(set.report().resident_bytes, 60u);
  ASSERT_EQ(set.report().left.size(), 1u);
  EXPECT_EQ(set.report().left[0].bytes, 101u);
}

// A backend whose driver fails once.
class FailingResidency final : public Residency {
 public:
  bool fail = true;
  int put_blocks = 0;

 protected:
  Result<void> put(std::span<const Block> blocks, std::vector<Refused>&) override {
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

// Says that it is in the middle of a commit and stays there until it is let on.
class SlowResidency final : public Residency {
 public:
  std::latch begun{1}, let_on{1};
  std::atomic<bool> in_place{false};

 protected:
  Result<void> put(std::span<const Block>, std::vector<Refused>&) override {
    begun.count_down();
    let_on.wait();
    in_place = true;
    return {};
  }
  void take(const Block&) noexcept override {}
};

TEST(Residency, MakesASecondThreadWaitForACommitThatIsUnderWay) {
  SlowResidency residency;
  residency.add({.handle = 1, .bytes = 64});
  std::jthread first([&] { EXPECT_TRUE(residency.commit()); });
  residency.begun.wait();
  bool was_in_place = false;
  {
    std::jthread second([&] {
      EXPECT_TRUE(residency.commit());
      was_in_place = residency.in_place;
    });
    // Time enough for a second commit that does not wait to come back with nothing in place.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    residency.let_on.count_down();
  }
  EXPECT_TRUE(was_in_place);
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
