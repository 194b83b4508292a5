// The arenas of a capped set: who waits gets the next one that becomes free, in turn.
#include "run/run_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "support/replay_fixtures.h"

namespace berth::internal::replay {
namespace {

constexpr auto kNever = std::chrono::hours(1);

struct Rig {
  ReplayOptions options;
  ArenaSet set;
  explicit Rig(unsigned cap) : options{.max_arenas = cap}, set(std::make_shared<testing::FakeMemory>(), options) {}

  RunArena* acquire(std::chrono::steady_clock::duration patience) {
    bool waited = false;
    return set.acquire(64, std::chrono::steady_clock::now() + patience, waited);
  }
  void wait_for_waiting(std::size_t count) const {
    while (set.waiting() != count) std::this_thread::yield();
  }
};

TEST(ArenaSet, GivesAFreeArenaToTheRunThatWaitsAndNotToTheOneThatComesBack) {
  Rig rig(1);
  RunArena* first = rig.acquire(kNever);
  ASSERT_NE(first, nullptr);
  std::atomic<bool> go_on{false};
  std::jthread other([&] {
    RunArena* given = rig.acquire(kNever);
    EXPECT_EQ(given, first);
    while (!go_on) std::this_thread::yield();
    rig.set.release(*given);
  });
  rig.wait_for_waiting(1);
  rig.set.release(*first);
  EXPECT_EQ(rig.set.waiting(), 0u) << "it has been given the arena, whether it runs yet or not";
  EXPECT_EQ(rig.acquire({}), nullptr);
  go_on = true;
  RunArena* again = rig.acquire(kNever);
  EXPECT_EQ(again, first);
  rig.set.release(*again);
}

TEST(ArenaSet, ARunWaitsAsLongAsThoseBeforeItTakeTheirTurns) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  constexpr milliseconds kPatience(1000);
  constexpr std::size_t kBefore = 15;
  Rig rig(1);
  RunArena* held = rig.acquire(kNever);
  // A busy machine may let a turn take longer than the last run waits. Then it is right to give up.
  std::vector<Clock::time_point> ends;  // only who holds the arena adds to it
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kBefore; ++i)
    threads.emplace_back([&] {
      RunArena* given = rig.acquire(kNever);
      std::this_thread::sleep_for(milliseconds(100));
      ends.push_back(Clock::now());
      rig.set.release(*given);
    });
  rig.wait_for_waiting(kBefore);
  bool served = false;
  const Clock::time_point began = Clock::now();
  std::jthread last([&] {
    RunArena* given = rig.acquire(kPatience);
    served = given != nullptr;
    if (served) rig.set.release(*given);
  });
  rig.wait_for_waiting(kBefore + 1);
  rig.set.release(*held);
  for (std::jthread& thread : threads) thread.join();
  last.join();
  Clock::duration longest = ends.front() - began;
  for (std::size_t i = 1; i < ends.size(); ++i) longest = std::max(longest, ends[i] - ends[i - 1]);
  EXPECT_TRUE(served || longest >= kPatience / 2) << "the others end one after the other";
}

TEST(ArenaSet, GivesTheArenaThatWasUsedLast) {
  Rig rig(3);
  std::array<RunArena*, 3> arenas{};
  for (RunArena*& arena : arenas) arena = rig.acquire(kNever);
  for (const std::size_t i : {1, 0, 2}) rig.set.release(*arenas[i]);
  EXPECT_EQ(rig.acquire(kNever), arenas[2]) << "its bytes are in the caches";
  EXPECT_EQ(rig.acquire(kNever), arenas[0]);
  EXPECT_EQ(rig.acquire(kNever), arenas[1]);
}

TEST(ArenaSet, ServesThoseThatWaitInTheOrderInWhichTheyCame) {
  Rig rig(2);
  RunArena* held = rig.acquire(kNever);
  RunArena* passed_on = rig.acquire(kNever);
  std::array<std::atomic<int>, 3> turn{};
  std::atomic<int> turns{0};
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < turn.size(); ++i) {
    threads.emplace_back([&, i] {
      RunArena* given = rig.acquire(kNever);
      EXPECT_EQ(given, passed_on);
      turn[i] = ++turns;
      rig.set.release(*given);
    });
    rig.wait_for_waiting(i + 1);
  }
  rig.set.release(*passed_on);
  threads.clear();
  for (std::size_t i = 0; i < turn.size(); ++i) EXPECT_EQ(turn[i], static_cast<int>(i) + 1);
  rig.set.release(*held);
}

TEST(ArenaSet, ForgetsWhoDoesNotWaitAnyLonger) {
  Rig rig(1);
  RunArena* held = rig.acquire(kNever);
  EXPECT_EQ(rig.acquire(std::chrono::milliseconds(1)), nullptr);
  EXPECT_EQ(rig.set.waiting(), 0u);
  rig.set.release(*held);
  EXPECT_EQ(rig.acquire({}), held);
  rig.set.release(*held);
}

}  // namespace
}  // namespace berth::internal::replay
