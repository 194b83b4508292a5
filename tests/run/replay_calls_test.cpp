// Calls of a Replay from other threads, and out of order.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "berth/run/replay.h"
#include "support/replay_fixtures.h"

namespace berth {
namespace {

using testing::FakeMemory;
using testing::first_fit;

struct Rig {
  std::shared_ptr<FakeMemory> arena = std::make_shared<FakeMemory>();
  std::shared_ptr<FakeMemory> pool = std::make_shared<FakeMemory>();
  Replay replay{arena, pool, {.planner = first_fit}};
};

// The thread sanitizer sees a difference where this test cannot.
TEST(ReplayCalls, AnswersForATraceAndAPlanWhileAnotherThreadRuns) {
  Rig rig;
  std::atomic<bool> over{false};
  std::uint64_t answers = 0;
  std::thread asks([&] {
    do {
      if (rig.replay.trace("k") != nullptr) ++answers;
      if (rig.replay.plan("k") != nullptr) ++answers;
    } while (!over.load());
  });
  for (int run = 0; run < 50; ++run) {
    ASSERT_TRUE(rig.replay.begin_run("k"));
    rig.replay.release(rig.replay.allocate(4096));
    rig.replay.end_run();
  }
  over = true;
  asks.join();
  EXPECT_GT(answers, 0u) << "the last round of questions comes after the last run";
}

// Two requests of one size that differ in alignment, asked for in the other order: each gets a slot that suits it.
TEST(ReplayCalls, AlignsARequestThatComesOutOfOrder) {
  Rig rig;
  constexpr std::size_t kBytes = 256;
  ASSERT_TRUE(rig.replay.begin_run("k"));
  void* first = rig.replay.allocate(64);  // moves the next slot off every large alignment
  void* loose = rig.replay.allocate(kBytes, 64);
  void* strict = rig.replay.allocate(kBytes, 4096);
  for (void* memory : {first, loose, strict}) rig.replay.release(memory);
  rig.replay.end_run();

  ASSERT_TRUE(rig.replay.begin_run("k"));
  first = rig.replay.allocate(64);
  strict = rig.replay.allocate(kBytes, 4096);
  loose = rig.replay.allocate(kBytes, 64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(strict) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loose) % 64, 0u);
  EXPECT_NE(reinterpret_cast<std::uintptr_t>(loose) % 4096, 0u) << "the test needs a slot that is not aligned";
  for (void* memory : {first, loose, strict}) rig.replay.release(memory);
  const ReplayRun run = rig.replay.end_run();
  EXPECT_EQ(run.planned, 3u);
  EXPECT_EQ(run.deviated, 0u);
}

}  // namespace
}  // namespace berth
