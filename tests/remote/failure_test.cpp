// What happens when ranks are killed, stopped or cut off: an error that names the rank, in bounded time, and survivors
// that go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "berth/berth.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"
#include "support/seed.h"

namespace berth {
namespace {

using test::JobFolder;
using test::RankProcess;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

class RemoteFailure : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (auto found = internal::ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
  }
  ClusterPtr join(std::uint32_t ranks, std::chrono::milliseconds give_up_after = 60s) {
    return Cluster::join({.exchange = folder_.exchange(0, ranks),
                          .transports = GetParam(),
                          .give_up_after = give_up_after,
                          .lends = 16 << 20})
        .value();
  }
  test::RankOptions options() const { return {.lends = 64 << 20, .transports = GetParam()}; }
  // Rank 1 keeps a window of this process and stops while it wants to write. It is given up on, the window is closed,
  // and it goes on. The memory must stay as it was.
  template <class Stop, class GoneOn>
  void give_up_on_a_writer(const Stop& stop, const GoneOn& gone_on) {
    RankProcess one(folder_, 1, 2, options());
    folder_.await({1}, 2);
    const auto cluster = join(2, 2500ms);
    EXPECT_EQ(one.joined(), "ok joined");
    const Bytes before = test::rank_pattern_bytes(3, 300'000);
    const auto near = Buffer::allocate(device("CPU").value(), u8, {before.size()}).value();
    near.copyin(before).value();
    const RemoteWindow window = cluster->open(near).value();
    EXPECT_EQ(one.ask("keep " + test::word_of(window)), "ok");
    stop(one);
    EXPECT_TRUE(cluster->close(window).has_value());
    EXPECT_EQ(cluster->lost(), std::vector<std::uint32_t>{1});
    one.resume();
    gone_on(one);
    Bytes after(before.size());
    near.copyout(after).value();
    EXPECT_TRUE(after == before);
  }
  JobFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Transports, RemoteFailure, testing::Values("", "tcp"),
                         [](const auto& each) { return *each.param == 0 ? "OneHost" : "Tcp"; });

void expect_lost(const Result<void>& result, std::uint32_t rank) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), Code::kDeviceLost) << result.error().message();
  EXPECT_NE(result.error().message().find("rank " + std::to_string(rank) + " is lost"), std::string::npos)
      << result.error().message();
}

// Waits, generously, until the loss of a rank is known.
bool is_lost(const ClusterPtr& cluster, std::size_t count) {
  const auto until = std::chrono::steady_clock::now() + test::kPatience;
  while (cluster->lost().size() < count) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

TEST_P(RemoteFailure, NamesAKilledRankForGoodAndGoesOnWithOthers) {
  RankProcess one(folder_, 1, 3, options()), two(folder_, 2, 3, options());
  const auto cluster = join(3);
  std::atomic<int> told{-1};
  cluster->on_lost([&](std::uint32_t rank, const Error& why) {
    EXPECT_EQ(why.code(), Code::kDeviceLost);
    told = static_cast<int>(rank);
  });
  const auto first = cluster->device(1).value(), second = cluster->device(2).value();
  Bytes bytes(1 << 20, std::byte{5});
  {
    const auto far = Buffer::allocate(first, u8, {1 << 20}).value();
    const auto near = Buffer::allocate(second, u8, {1 << 20}).value();
    far.copyin(bytes).value();
    near.copyin(bytes).value();
    one.kill9();
    ASSERT_TRUE(is_lost(cluster, 1));
    EXPECT_EQ(cluster->lost(), std::vector<std::uint32_t>{1});
    for (int round = 0; round < 3; ++round) {
      expect_lost(far.copyin(bytes), 1);
      expect_lost(far.copyout(bytes), 1);
      const auto queue = first->make_queue().value();
      expect_lost(queue->fill(far.window().value(), 3), 1);
      expect_lost(Buffer::allocate(first, u8, {64}).has_value()
                      ? Result<void>()
                      : Result<void>(Buffer::allocate(first, u8, {64}).error()),
                  1);
      EXPECT_TRUE(near.copyin(bytes).has_value());
      EXPECT_TRUE(near.copyout(bytes).has_value());
    }
  }
  EXPECT_EQ(first->counters().live_bytes, 0u) << "frees go on";
  EXPECT_EQ(first->counters().pending_bytes, 0u);
  EXPECT_TRUE(Buffer::allocate(second, u8, {4096}, {.zero = true}).has_value());
  const auto until = std::chrono::steady_clock::now() + test::kPatience;
  while (told != 1 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(told, 1);
  expect_lost(cluster->barrier(), 1);
  EXPECT_EQ(cluster->counters().lost_ranks, 1u);
}

TEST_P(RemoteFailure, GoesOnWithTheOtherHalfOfTheRanks) {
  std::vector<std::unique_ptr<RankProcess>> others;
  for (std::uint32_t rank = 1; rank < 6; ++rank)
    others.push_back(std::make_unique<RankProcess>(folder_, rank, 6, options()));
  const auto cluster = join(6);
  std::vector<Buffer> far(6);
  for (std::uint32_t rank = 1; rank < 6; ++rank)
    far[rank] = Buffer::allocate(cluster->device(rank).value(), u8, {1 << 20}, {.zero = true}).value();
  for (const std::uint32_t rank : {1u, 3u, 5u}) others[rank - 1]->kill9();
  ASSERT_TRUE(is_lost(cluster, 3));
  const Bytes bytes = test::rank_pattern_bytes(4, 1 << 20);
  Bytes back(1 << 20);
  for (const std::uint32_t rank : {1u, 3u, 5u}) expect_lost(far[rank].copyin(bytes), rank);
  for (const std::uint32_t rank : {2u, 4u}) {
    ASSERT_TRUE(far[rank].copyin(bytes).has_value());
    ASSERT_TRUE(far[rank].copyout(back).has_value());
    EXPECT_TRUE(back == bytes) << "rank " << rank;
  }
  // Survivors find the same, and use each other.
  EXPECT_EQ(others[1]->joined(), "ok joined");
  EXPECT_EQ(others[3]->joined(), "ok joined");
  EXPECT_EQ(others[1]->ask("evict 4 1000000"), "ok");
  EXPECT_NE(others[1]->ask("evict 3 1000000").find("rank 3 is lost"), std::string::npos);
  auto lost = cluster->lost();
  std::sort(lost.begin(), lost.end());
  EXPECT_EQ(lost, (std::vector<std::uint32_t>{1, 3, 5}));
}

// UCX reports every connection that ends on the output of the program, in the middle of what that prints.
TEST_P(RemoteFailure, PrintsNothing) {
  if (std::getenv("UCX_LOG_LEVEL") != nullptr) GTEST_SKIP() << "UCX_LOG_LEVEL is set, so that UCX prints";
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    RankProcess one(folder_, 1, 2, options());
    const auto cluster = join(2);
    const auto far = Buffer::allocate(cluster->device(1).value(), u8, {4 << 20}).value();
    EXPECT_EQ(one.joined(), "ok joined");
    const auto window = cluster->import(one.open("w", 4 << 20, Access::kReadWrite, 1)).value();
    std::jthread killer([&] {
      std::this_thread::sleep_for(30ms);
      one.kill9();
    });
    const Bytes bytes(4 << 20);
    while (far.copyin(bytes) && window.copyin(bytes)) {
    }
    EXPECT_TRUE(is_lost(cluster, 1));
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_P(RemoteFailure, FindsARankLostThatLeft) {
  RankProcess one(folder_, 1, 2, options());
  const auto cluster = join(2);
  const auto far = Buffer::allocate(cluster->device(1).value(), u8, {64}).value();
  EXPECT_EQ(one.quit(), 0);
  ASSERT_TRUE(is_lost(cluster, 1));
  Bytes bytes(64);
  const auto read = far.copyout(bytes);
  expect_lost(read, 1);
}

// A stopped process keeps its connection, as a cut cable does: only the time tells.
TEST_P(RemoteFailure, GivesUpOnARankThatIsSilent) {
  RankProcess one(folder_, 1, 3, options()), two(folder_, 2, 3, options());
  folder_.await({1, 2}, 3);
  const auto cluster = join(3, 2500ms);
  const RemoteWindow window = [&] {
    EXPECT_EQ(one.joined(), "ok joined");
    return one.open("w", 64 << 20, Access::kReadWrite, 1);
  }();
  const auto far = cluster->import(window).value();
  const auto near = Buffer::allocate(cluster->device(2).value(), u8, {4096}).value();
  one.stop();
  // A fill asks the owner, whatever the transport.
  const auto queue = far.device().make_queue().value();
  expect_lost(queue->fill(far.window().value(), 3), 1);
  EXPECT_TRUE(near.copyin(Bytes(4096)).has_value());
  one.resume();
  expect_lost(far.copyin(Bytes(64 << 20)), 1);
}

// It was given up on, does not know it, and goes on. What it writes to must not be the memory of a closed window.
TEST_P(RemoteFailure, RefusesTheWritesOfARankThatWasGivenUp) {
  give_up_on_a_writer(
      [](RankProcess& one) {
        one.stop();
        one.send("write 4");
      },
      [](RankProcess& one) {
        const std::string answer = one.answer();
        EXPECT_EQ(answer.substr(0, 6), "error ") << answer;
      });
}

// The same, in the worst order: it writes before it hears that the window is closed, and the connection may still take
// what it sends. Only the owner can refuse it.
TEST_P(RemoteFailure, RefusesWhatAGivenUpRankSendsBeforeItHearsOfIt) {
  give_up_on_a_writer(
      [](RankProcess& one) {
        one.send("blind 4");
        one.await_stop();
      },
      [](RankProcess& one) {
        EXPECT_NE(one.answer(), "") << "it ends its write";
        // What it says next comes after what it wrote, so that this has been received, if it ever is.
        EXPECT_NE(one.ask("barrier").find("rank 0 is lost"), std::string::npos);
      });
}

TEST_P(RemoteFailure, EndsWaitsForArrivalsOfALostRank) {
  RankProcess one(folder_, 1, 2, options());
  const auto cluster = join(2);
  EXPECT_EQ(one.joined(), "ok joined");
  const auto near = Buffer::allocate(device("CPU").value(), u8, {4096}).value();
  const RemoteWindow window = cluster->open(near).value();
  const std::string text = test::word_of(window);
  // The import is dropped when the put is done, so this rank is no writer any more when it dies; a second one is.
  EXPECT_EQ(one.ask("keep " + text), "ok");
  const Timepoint moment = cluster->arrived(window, 1).value();
  std::jthread killer([&] {
    std::this_thread::sleep_for(50ms);
    one.kill9();
  });
  expect_lost(wait(moment), 1);
  EXPECT_TRUE(cluster->close(window).has_value()) << "a lost rank does not hold it open";
}

TEST_P(RemoteFailure, LosesWhatWasEvictedToALostRankAndNothingElse) {
  RankProcess one(folder_, 1, 2, options());
  const auto cluster = join(2);
  const auto memory = make_evictable(device("CPU").value()).value();
  const auto kept = Buffer::allocate(memory, u8, {3 << 20}, {.tag = "near"}).value();
  const auto gone = Buffer::allocate(memory, u8, {3 << 20}, {.tag = "far"}).value();
  kept.copyin(test::rank_pattern_bytes(1, 3 << 20)).value();
  gone.copyin(test::rank_pattern_bytes(2, 3 << 20)).value();
  memory->evict("near", Contents::kToFile).value();
  memory->evict("far", cluster->device(1).value()).value();
  EXPECT_EQ(memory->counters().resident_bytes, 0u);
  memory->wake("far").value();
  Bytes bytes(3 << 20);
  gone.copyout(bytes).value();
  EXPECT_TRUE(bytes == test::rank_pattern_bytes(2, 3 << 20));

  memory->evict("far", cluster->device(1).value()).value();
  one.kill9();
  ASSERT_TRUE(is_lost(cluster, 1));
  const auto woken = memory->wake("far");
  expect_lost(woken ? Result<void>() : Result<void>(woken.error()), 1);
  memory->wake("near").value();
  kept.copyout(bytes).value();
  EXPECT_TRUE(bytes == test::rank_pattern_bytes(1, 3 << 20));
}

// A rank is killed at a random moment while this process writes, reads, fills and copies. Every call succeeds with the
// right bytes, or fails with the rank's name.
TEST_P(RemoteFailure, NeverHangsNorLiesWhenARankDiesAtARandomMoment) {
  for (const std::uint32_t seed : test::seeds(6)) {
    std::mt19937 random(seed);
    JobFolder folder;
    RankProcess one(folder, 1, 2, options());
    const auto cluster =
        Cluster::join({.exchange = folder.exchange(0, 2), .transports = GetParam(), .give_up_after = 60s}).value();
    const auto wait_ms = std::uniform_int_distribution<int>(0, 60)(random);
    std::jthread killer([&one, wait_ms] {
      std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
      one.kill9();
    });
    bool alive = true;
    const auto until = std::chrono::steady_clock::now() + test::kPatience;
    const auto works = [&](const auto& result) {
      if (result) return true;
      EXPECT_EQ(result.error().code(), Code::kDeviceLost) << "seed " << seed << ": " << result.error().message();
      alive = false;
      return false;
    };
    const auto opened = cluster->device(1);
    works(opened);
    while (alive && std::chrono::steady_clock::now() < until) {
      const std::size_t bytes = std::uniform_int_distribution<std::size_t>(1, 6 << 20)(random);
      const std::uint64_t shade = random();
      const auto a = Buffer::allocate(*opened, u8, {bytes}), b = Buffer::allocate(*opened, u8, {bytes});
      if (!works(a) || !works(b) || !works(a->copyin(test::rank_pattern_bytes(shade, bytes)))) break;
      if (!works(b->copy_from(*a))) break;
      Bytes back(bytes);
      if (!works(b->copyout(back))) break;
      ASSERT_TRUE(back == test::rank_pattern_bytes(shade, bytes)) << "seed " << seed;
      // The loss may be noticed between two rounds, too.
      if (!cluster->lost().empty()) break;
    }
    EXPECT_TRUE(is_lost(cluster, 1)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace berth
