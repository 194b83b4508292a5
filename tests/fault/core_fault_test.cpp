// Every public operation of buffers, views, copies, imports, queues and pools, with each of its allocations and
// device calls failing in turn.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "base/try.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/statistics.h"
#include "berth/berth.h"
#include "berth/tensor/step_buffers.h"
#include "berth/testing.h"

namespace berth {

using namespace internal;

namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, int value) {
  return Bytes(bytes, static_cast<std::byte>(value));
}

// Afterwards the device must still do plain work.
Result<void> still_works(const DevicePtr& device) {
  BERTH_TRY_ASSIGN(const Buffer buffer, Buffer::allocate(device, u8, {64}));
  BERTH_TRY(buffer.copyin(filled(64, 7)));
  Bytes seen(64);
  BERTH_TRY(buffer.copyout(seen));
  if (seen != filled(64, 7)) return Error(Code::kInvalidData, Layer::kProgram, "the bytes are wrong");
  BERTH_TRY_ASSIGN(const QueuePtr queue, device->make_queue());
  BERTH_TRY_ASSIGN(const Window window, buffer.window());
  BERTH_TRY(queue->fill(window, 9));
  return queue->finish();
}

void expect_sound(const std::function<Result<void>(const DevicePtr&)>& scenario, std::uint64_t at_least) {
  const SweepReport report = fail_each(scenario, {.after = still_works});
  EXPECT_TRUE(report.ok()) << report.to_string();
  EXPECT_GE(report.rounds, at_least) << "the sweep reached fewer calls than there are";
}

TEST(FaultSweep, MemoryThatIsNotZeroedIsNotGivenAsZeroed) {
  expect_sound(
      [](const DevicePtr& device) -> Result<void> {
        StepBuffers steps(device);
        {
          BERTH_TRY_ASSIGN(const Buffer used, steps.allocate(u8, {64}));
          BERTH_TRY(used.copyin(filled(64, 7)));
          BERTH_TRY(steps.release(used));
        }
        BERTH_TRY_ASSIGN(const Buffer zeroed, steps.allocate(u8, {64}, {.zero = true}));
        Bytes seen(64);
        BERTH_TRY(zeroed.copyout(seen));
        EXPECT_EQ(seen, filled(64, 0));
        return {};
      },
      4);
}

TEST(FaultSweep, BuffersStayLazyWhenTheirAllocationFails) {
  expect_sound(
      [](const DevicePtr& device) -> Result<void> {
        BERTH_TRY_ASSIGN(const Buffer lazy, Buffer::lazy(device, f32, {100}, {.label = "lazy"}));
        BERTH_TRY_ASSIGN(const Buffer view, lazy.view(40, 80));
        if (auto done = view.ensure_allocated(); !done) {
          EXPECT_FALSE(lazy.is_allocated());
          EXPECT_EQ(done.error().code(), Code::kOutOfMemory);
          // The same handle works once there is memory.
          BERTH_TRY(view.ensure_allocated());
          EXPECT_TRUE(lazy.is_allocated());
          return done;
        }
        BERTH_TRY_ASSIGN(const Buffer now, Buffer::allocate(device, f32, {100}, {.label = "now", .zero = true}));
        BERTH_TRY_ASSIGN(const auto values, now.as_slice<float>());
        EXPECT_EQ(values[99], 0.0f);
        return {};
      },
      3);
}

TEST(FaultSweep, CopiesLeaveATargetWholeOrUntouched) {
  expect_sound(
      [](const DevicePtr& device) -> Result<void> {
        BERTH_TRY_ASSIGN(const Buffer source, Buffer::allocate(device, u8, {1000}));
        BERTH_TRY(source.copyin(filled(1000, 1)));
        BERTH_TRY_ASSIGN(const Buffer target, Buffer::lazy(device, u8, {1000}));
        if (auto copied = target.copy_from(source); !copied) {
          EXPECT_FALSE(target.is_allocated());
          return copied;
        }
        BERTH_TRY_ASSIGN(const Buffer low, target.view(0, 600));
        BERTH_TRY_ASSIGN(const Buffer high, target.view(400, 600));
        BERTH_TRY(high.copy_from(low));
        Bytes seen(1000);
        BERTH_TRY(target.copyout(seen));
        EXPECT_EQ(seen, filled(1000, 1));
        BERTH_TRY_ASSIGN(const DevicePtr cpu, berth::device("CPU"));
        BERTH_TRY_ASSIGN(const Buffer elsewhere, Buffer::lazy(cpu, u8, {1000}));
        BERTH_TRY(elsewhere.copy_from(target));
        return target.copy_from(elsewhere);
      },
      3);
}

TEST(FaultSweep, ImportsReleaseTheirMemoryOnceWhateverFails) {
  expect_sound(
      [](const DevicePtr& device) -> Result<void> {
        Bytes memory = filled(256, 3);
        int released = 0;
        const auto run = [&]() -> Result<void> {
          BERTH_TRY_ASSIGN(const Buffer buffer,
                           Buffer::import(device,
                                          {.address = reinterpret_cast<std::uint64_t>(memory.data()),
                                           .bytes = memory.size(),
                                           .read_only = false,
                                           .release = [&] { ++released; }},
                                          u8, {256}));
          BERTH_TRY_ASSIGN(const Buffer copy, Buffer::allocate(device, u8, {256}));
          return copy.copy_from(buffer);
        };
        const auto result = run();
        EXPECT_EQ(released, 1);
        return result;
      },
      3);
}

TEST(FaultSweep, QueuesRecoverFromEveryCall) {
  expect_sound(
      [](const DevicePtr& device) -> Result<void> {
        BERTH_TRY_ASSIGN(const QueuePtr queue, device->make_queue());
        BERTH_TRY_ASSIGN(const Buffer a, Buffer::allocate(device, u8, {256}));
        BERTH_TRY_ASSIGN(const Buffer b, Buffer::allocate(device, u8, {256}));
        BERTH_TRY_ASSIGN(const Window wa, a.window());
        BERTH_TRY_ASSIGN(const Window wb, b.window());
        BERTH_TRY(queue->write(wa, filled(256, 5)));
        BERTH_TRY(queue->copy(wa, wb));
        BERTH_TRY(queue->copy_rows(wa, 16, wb, 16, 8, 4));
        BERTH_TRY_ASSIGN(const Timepoint first, queue->submit());
        BERTH_TRY(queue->wait_for(first));
        BERTH_TRY(queue->fill(wa, 6));
        BERTH_TRY_ASSIGN(
            const Kernel kernel,
            device->make_kernel({.host = [](const HostCall& call) { call.windows[0][0] = std::byte{8}; }}));
        const std::array<KernelArgument, 1> arguments = {KernelArgument{wa, Access::kReadWrite}};
        BERTH_TRY(queue->launch(kernel, arguments, {}));
        Bytes seen(256);
        BERTH_TRY(queue->read(wa, seen));
        BERTH_TRY(queue->finish());
        EXPECT_EQ(seen[0], std::byte{8});
        EXPECT_EQ(seen[1], std::byte{6});
        return device->synchronize();
      },
      15);
}

TEST(FaultSweep, PoolsAndStacksStaySound) {
  expect_sound(
      [](const DevicePtr& device) -> Result<void> {
        const auto cache = make_caching_pool(device);
        const auto stack = make_statistics(make_limit(cache, 1 << 20));
        const auto run = [&]() -> Result<void> {
          std::vector<Buffer> held;
          for (std::size_t i = 1; i < 12; ++i) {
            BERTH_TRY_ASSIGN(Buffer buffer,
                             Buffer::allocate(stack, u8, {i * 700}, {.tag = i % 2 == 0 ? "even" : "odd"}));
            if (i % 3 == 0) held.clear();
            held.push_back(std::move(buffer));
          }
          BERTH_TRY_ASSIGN(const Buffer zeroed, Buffer::allocate(stack, u8, {700}, {.tag = "odd", .zero = true}));
          BERTH_TRY_ASSIGN(const auto bytes, zeroed.as_host_bytes());
          EXPECT_EQ(bytes[699], std::byte{0});
          cache->trim_tag("even");
          return {};
        };
        const auto result = run();
        EXPECT_TRUE(cache->check().has_value());
        EXPECT_EQ(cache->counters().live_count, 0u);
        EXPECT_EQ(stack->counters().live_bytes, 0u);
        return result;
      },
      5);
}

TEST(FaultSweep, FindsALeak) {
  std::vector<Block> lost;
  const SweepReport report = fail_each([&](const DevicePtr& device) -> Result<void> {
    BERTH_TRY_ASSIGN(const Block first, device->allocate({.bytes = 100, .label = "forgotten"}));
    auto second = device->allocate({.bytes = 100});
    if (!second) {
      lost.push_back(first);
      return second.error();
    }
    device->release(*second);
    device->release(first);
    return {};
  });
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0], "failing call 2: leaked 100 B in 1 blocks: \"forgotten\" 100 B");
  EXPECT_EQ(report.rounds, 3u);
  const auto cpu = device("CPU").value();
  for (const Block& block : lost) cpu->release(block);  // the faulty device took it from there
}

TEST(FaultSweep, FindsAScenarioThatFailsByItself) {
  const SweepReport report =
      fail_each([](const DevicePtr&) -> Result<void> { return Error(Code::kCancelled, Layer::kProgram, "not today"); });
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.to_string(), "1 rounds, 1 problems\n  failing call 1: no call failed, and yet: not today");
}

TEST(FaultSweep, FindsAHeldDeviceAndAnEndlessSweep) {
  std::vector<DevicePtr> held;
  const SweepReport report = fail_each(
      [&](const DevicePtr& device) -> Result<void> {
        held.push_back(device);
        for (int i = 0; i < 10; ++i)
          if (auto block = device->allocate({.bytes = 1})) device->release(*block);
        return {};
      },
      {.after = {}, .max_rounds = 2});
  ASSERT_EQ(report.problems.size(), 3u);
  EXPECT_EQ(report.problems[0], "failing call 1: something still holds the device");
  EXPECT_EQ(report.problems[2], "a call still failed after 2 rounds");
}

// Each kind of call is one that can fail.
TEST(FaultSweep, ReachesEveryKindOfTransfer) {
  using Step = std::function<Result<void>(Queue&, const Window&)>;
  std::vector<std::byte> bytes(64);
  const Step steps[] = {
      [&](Queue& queue, const Window& window) { return queue.write(window, bytes); },
      [&](Queue& queue, const Window& window) { return queue.read(window, bytes); },
      [&](Queue& queue, const Window& window) { return queue.fill(window, 1); },
      [&](Queue& queue, const Window& window) {
        Window half = window, rest = window;
        half.bytes = rest.bytes = rest.offset = 32;
        return queue.copy(half, rest);
      },
  };
  for (const Step& step : steps) {
    int failed = 0;
    const SweepReport report = fail_each([&](const DevicePtr& device) -> Result<void> {
      BERTH_TRY_ASSIGN(const QueuePtr queue, device->make_queue());
      BERTH_TRY_ASSIGN(const Buffer buffer, Buffer::allocate(device, u8, {64}));
      BERTH_TRY_ASSIGN(const Window window, buffer.window());
      const Result<void> done = step(*queue, window);
      failed += !done;
      return done;
    });
    EXPECT_TRUE(report.ok()) << report.to_string();
    EXPECT_EQ(failed, 1) << "step " << &step - steps;
  }
}

}  // namespace
}  // namespace berth
