#include "berth/engines/engine_memory.h"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/os/processors.h"
#include "berth/alloc/adaptor.h"
#include "berth/alloc/limit.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"

namespace berth::engines {
namespace {

// Notes what is asked of it.
class Noting final : public AllocatorAdaptor {
 public:
  Noting() : AllocatorAdaptor(berth::device("CPU").value()) {}
  Result<Block> allocate(const BlockSpec& spec) override {
    asked.push_back(spec.bytes);
    return inner()->allocate(spec);
  }
  void release(const Block& block, Timepoint last_use) noexcept override {
    ++released;
    inner()->release(block, last_use);
  }
  std::string_view name() const noexcept override { return "noting"; }
  std::vector<std::size_t> asked;
  unsigned released = 0;
};

// What an engine's hook would do in a run of three layers.
void three_layers(EngineMemory& memory, std::size_t bytes) {
  void* a = memory.allocate(bytes);
  void* b = memory.allocate(bytes);
  std::memset(a, 1, bytes);
  std::memset(b, 2, bytes);
  memory.release(a);
  void* c = memory.allocate(2 * bytes);
  std::memset(c, 3, 2 * bytes);
  EXPECT_EQ(*static_cast<char*>(b), 2);
  memory.release(b);
  memory.release(c);
}

TEST(EngineMemory, ServesRunsFromAnArenaThatEndsWhereAKernelMayRead) {
  auto arenas = std::make_shared<Noting>(), pool = std::make_shared<Noting>();
  EngineMemoryOptions options;
  options.arena_memory = arenas;
  options.pool = pool;
  options.read_past_end = 128;
  EngineMemory memory = EngineMemory::create(options).value();
  for (int i = 0; i < 3; ++i) {
    auto run = memory.run("three layers", {{6400}});
    ASSERT_TRUE(run.status);
    three_layers(memory, 6400);
    EXPECT_EQ(run.end().planned, i == 0 ? 0u : 3u);
  }
  EXPECT_EQ(pool->asked, (std::vector<std::size_t>{6400 + 128, 6400 + 128, 12800 + 128}));
  EXPECT_EQ(pool->released, 3u);
  ASSERT_EQ(arenas->asked.size(), 1u);
  EXPECT_GE(arenas->asked[0], 3u * 6400 + 128);
}

TEST(EngineMemory, StaysTheSameWhenItIsMoved) {
  EngineMemory first = EngineMemory::create().value();
  void* memory = first.allocate(1000);
  Replay* replay = &first.replay();
  EngineMemory second = std::move(first);
  EXPECT_EQ(&second.replay(), replay);
  second.release(memory);
  EXPECT_EQ(second.replay().counters().pool_bytes, 0u);
}

TEST(EngineMemory, ARunThatIsEndedTwiceEndsOnce) {
  EngineMemory memory = EngineMemory::create().value();
  {
    auto run = memory.run("three layers");
    three_layers(memory, 64);
    EXPECT_TRUE(run.end().recorded);
    EXPECT_FALSE(run.end().recorded);
  }
  EXPECT_EQ(memory.replay().counters().runs, 1u);
}

TEST(EngineMemory, HasNoMemoryForASizeThatWrapsAround) {
  EngineMemoryOptions options;
  options.read_past_end = 4096;
  EngineMemory memory = EngineMemory::create(options).value();
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4095, SIZE_MAX - 4096, SIZE_MAX / 2})
    EXPECT_EQ(memory.allocate(bytes), nullptr) << bytes;
  EXPECT_EQ(memory.allocate(0), nullptr);
  memory.release(nullptr);
  EXPECT_EQ(memory.replay().counters().pool_bytes, 0u);
}

TEST(EngineMemory, WithoutMemoryForTheArenaTheRunIsServedByThePool) {
  EngineMemoryOptions options;
  options.arena_memory = make_limit(device("CPU").value(), 1000);
  EngineMemory memory = EngineMemory::create(options).value();
  for (int i = 0; i < 3; ++i) {
    auto run = memory.run("three layers");
    EXPECT_EQ(run.status.has_value(), i == 0);
    if (!run.status) {
      EXPECT_EQ(run.status.error().code(), Code::kOutOfMemory);
    }
    three_layers(memory, 6400);
  }
  EXPECT_EQ(memory.replay().counters().planned, 0u);
}

TEST(EngineMemory, HasNoMoreArenasThanTheProcessHasProcessors) {
  const unsigned processors = internal::usable_processors();
  for (const bool capped : {true, false}) {
    EngineMemoryOptions options;
    if (!capped) options.replay.max_arenas = 0;
    options.replay.max_wait = std::chrono::milliseconds(1);
    EngineMemory memory = EngineMemory::create(options).value();
    const auto run = [&] {
      auto scope = memory.run("three layers");
      three_layers(memory, 6400);
    };
    run();
    run();
    // As many runs as there are processors are in progress, each on a thread of its own, when one more begins.
    std::barrier<> meet(processors + 1);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < processors; ++i)
      threads.emplace_back([&] {
        auto held = memory.run("three layers");
        meet.arrive_and_wait();
        meet.arrive_and_wait();
      });
    meet.arrive_and_wait();
    run();
    meet.arrive_and_wait();
    for (std::thread& thread : threads) thread.join();
    const ReplayCounters counters = memory.replay().counters();
    EXPECT_EQ(counters.arenas_peak, capped ? processors : processors + 1);
    EXPECT_EQ(counters.pooled_runs, capped ? 1u : 0u);
  }
}

}  // namespace
}  // namespace berth::engines
