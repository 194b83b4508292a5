// What must not allocate does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "berth/alloc/linear.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"
#include "support/count_allocations.h"

namespace berth {
namespace {

using test::allocations;

Schedule layers_of_steps(std::size_t layers, std::size_t width, std::atomic<std::size_t>& runs) {
  const Buffer bytes = Buffer::allocate(device("CPU").value(), u8, {width}).value();
  ScheduleBuilder builder;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t i = 0; i < width; ++i)
      builder.add_step({.writes = {bytes.view(i, 1).value()}, .run = [&](const StepRun&) -> Result<void> {
                          runs.fetch_add(1, std::memory_order_relaxed);
                          return {};
                        }});
    for (std::size_t i = 0; i < 4; ++i) builder.add_step({.reads = {bytes}});
  }
  return builder.build().value();
}

// The most that one of several runs allocates, after a first one.
std::size_t allocations_of(const Schedule& schedule, std::uint32_t lanes) {
  EXPECT_TRUE(schedule.run({.workers = lanes}));
  std::size_t most = 0;
  for (int i = 0; i < 20; ++i) {
    const std::size_t before = allocations.load();
    const bool done = schedule.run({.workers = lanes}).has_value();
    most = std::max(most, allocations.load() - before);
    EXPECT_TRUE(done);
  }
  return most;
}

TEST(Allocations, AreCounted) {
  const std::size_t before = allocations.load();
  const auto memory = std::make_unique<std::vector<int>>(100);
  EXPECT_EQ(allocations.load() - before, 2u) << memory->size();
}

TEST(Allocations, OfARunAreNoneForAStep) {
  std::atomic<std::size_t> runs{0};
  const Schedule large = layers_of_steps(50, 20, runs);
  EXPECT_EQ(allocations_of(large, 1), 0u);
  // Each further lane may cost a task of its own, no step does.
  EXPECT_LE(allocations_of(large, 2), 4u);
  EXPECT_EQ(runs.load(), 2u * 21u * 50u * 20u);
}

TEST(Allocations, OfWritesAndByteReadsOnAnArenaAreNone) {
  const DevicePtr cpu = device("CPU").value();
  const MemoryPlan plan = berth::plan({{.bytes = 4096, .first = 0, .last = 1, .alignment = 64}}).value();
  const Arena arena = Arena::from_plan(cpu, plan, {.f16_shadow = Shadow::kOn}).value();
  const QueuePtr queue = cpu->make_queue().value();
  std::vector<float> data(1024, 1.0f);
  ASSERT_TRUE(arena.write_f32(*queue, 0, data));
  const std::size_t before = allocations.load();
  const bool wrote = arena.write_f32(*queue, 0, data).has_value();
  const bool read = arena.read_f32(*queue, 0, data).has_value();
  const bool has_shadow = arena.shadow(*queue, 0).has_value();
  EXPECT_EQ(allocations.load() - before, 0u);
  EXPECT_TRUE(wrote && read && has_shadow);
}

TEST(Allocations, OfALinearAllocatorAreNoneAfterTheFirstRound) {
  const auto linear = make_linear(device("CPU").value());
  std::vector<Block> blocks(1000);
  std::size_t last = 0;
  for (int round = 0; round < 2; ++round) {
    const std::size_t before = allocations.load();
    const LinearMemory::Mark mark = linear->mark();
    for (Block& block : blocks) block = *linear->allocate({.bytes = 5000});
    for (const Block& block : blocks) linear->release(block);
    const bool is_reset = linear->reset(mark).has_value();
    last = allocations.load() - before;
    EXPECT_TRUE(is_reset);
  }
  EXPECT_EQ(last, 0u);
}

}  // namespace
}  // namespace berth
