// Joining, windows, arrivals and barriers, between this process and others.
#include "berth/remote/cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/os/process_memory.h"
#include "berth/berth.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"

namespace berth {
namespace {

using test::JobFolder;
using test::RankOptions;
using test::RankProcess;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

// This process is rank 0.
class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto found = internal::ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
  }
  Result<ClusterPtr> join(std::uint32_t ranks = 2, ClusterOptions options = {}) {
    options.exchange = folder_.exchange(0, ranks);
    return Cluster::join(options);
  }
  JobFolder folder_;
};

Bytes contents(const Buffer& buffer) {
  Bytes bytes(buffer.size());
  buffer.copyout(bytes).value();
  return bytes;
}

TEST_F(ClusterTest, JoinsAndNamesTheMemoryOfOthers) {
  RankProcess other(folder_, 1, 2, {.lends = 16 << 20});
  const auto cluster = join();
  ASSERT_TRUE(cluster.has_value()) << cluster.error().message();
  EXPECT_EQ(other.joined(), "ok joined");
  EXPECT_EQ((*cluster)->rank(), 0u);
  EXPECT_EQ((*cluster)->ranks(), 2u);
  EXPECT_EQ((*cluster)->give_up_after(), 30s);
  const auto far = (*cluster)->device(1);
  ASSERT_TRUE(far.has_value()) << far.error().message();
  EXPECT_EQ((*far)->name(), "REMOTE:1");
  EXPECT_EQ((*far)->limits().total_bytes, std::size_t{16} << 20);
  EXPECT_NE((*far)->description().find("rank 1 of 2"), std::string::npos) << (*far)->description();
  EXPECT_EQ((*cluster)->device(1).value(), *far) << "a rank has one device";
  const auto self = (*cluster)->device(0);
  ASSERT_FALSE(self.has_value());
  EXPECT_EQ(self.error().code(), Code::kDeviceUnavailable);
  const auto none = (*cluster)->device(2);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kDeviceUnavailable);
  // By name, if no cluster of another test lives. Otherwise the name is of that one.
  if (const auto named = device("REMOTE:1"); named && *named == *far) SUCCEED();
  EXPECT_EQ(other.value("counters"), "refused_messages=0, lent_bytes=16777216, windows=0, lost_ranks=0");
  EXPECT_EQ(other.quit(), 0);
}

TEST_F(ClusterTest, TakesItsLeaseOnce) {
  RankProcess other(folder_, 1, 2, {.lends = 16 << 20});
  const auto cluster = join(2, {.lease = 5 << 20}).value();
  {
    const auto far = cluster->device(1).value();
    EXPECT_EQ(far->limits().total_bytes, std::size_t{5} << 20);
    const auto full = Buffer::allocate(far, u8, {5 << 20});
    EXPECT_TRUE(full.has_value()) << full.error().message();
    const auto more = Buffer::allocate(far, u8, {4096});
    ASSERT_FALSE(more.has_value());
    EXPECT_EQ(more.error().code(), Code::kOutOfMemory);
    ASSERT_NE(more.error().out_of_memory(), nullptr);
  }
  EXPECT_EQ(other.joined(), "ok joined");
  // Opened again: the same lease.
  const auto again = Buffer::allocate(cluster->device(1).value(), u8, {5 << 20});
  EXPECT_TRUE(again.has_value());
  EXPECT_EQ(other.value("counters"), "refused_messages=0, lent_bytes=5242880, windows=0, lost_ranks=0");
}

// Both map the same file.
TEST_F(ClusterTest, HasAPointerToALeaseWhoeverSpokeFirst) {
  for (const bool other_first : {false, true}) {
    const JobFolder folder;
    RankProcess other(folder, 1, 2, {.lends = 16 << 20});
    const auto cluster = Cluster::join({.exchange = folder.exchange(0, 2)}).value();
    if (other_first) {
      other.send("barrier");
      cluster->barrier().value();
    }
    const auto far = Buffer::allocate(cluster->device(1).value(), u8, {5 << 20}).value();
    EXPECT_TRUE(far.cpu_accessible()) << other_first;
    far.copyin(test::rank_pattern_bytes(4, 5 << 20)).value();
    EXPECT_TRUE(contents(far) == test::rank_pattern_bytes(4, 5 << 20));
  }
}

TEST_F(ClusterTest, SaysWhoLendsNothingOrTooLittle) {
  RankProcess one(folder_, 1, 3), two(folder_, 2, 3, {.lends = 1 << 20});
  const auto cluster = join(3, {.lease = 2 << 20}).value();
  const auto none = Buffer::allocate(cluster->device(1).value(), u8, {64});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kUnsupported);
  EXPECT_NE(none.error().message().find("rank 1 lends no memory"), std::string::npos) << none.error().message();
  const auto little = Buffer::allocate(cluster->device(2).value(), u8, {64});
  ASSERT_FALSE(little.has_value());
  EXPECT_EQ(little.error().code(), Code::kOutOfMemory);
  EXPECT_NE(little.error().message().find("rank 2"), std::string::npos) << little.error().message();
}

TEST_F(ClusterTest, NamesTheRanksThatAreMissing) {
  RankProcess one(folder_, 1, 4, {.give_up_after = 1s});
  folder_.await({1}, 4);
  const auto cluster = join(4, {.give_up_after = 1s});
  ASSERT_FALSE(cluster.has_value());
  EXPECT_EQ(cluster.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(cluster.error().message().find("2, 3"), std::string::npos) << cluster.error().message();
  EXPECT_NE(one.joined().find("DeviceUnavailable"), std::string::npos);
}

TEST_F(ClusterTest, RefusesARankWithAnotherToken) {
  // The folder refuses it first; functions do not look at tokens, so the cluster's own check is seen.
  std::map<std::string, Bytes> table;
  std::mutex mutex;
  const auto exchange = [&](std::uint32_t rank, const std::string& token) {
    return make_function_exchange(
               {.rank = rank,
                .ranks = 2,
                .token = token,
                .publish = [&, rank](const std::string& key, std::span<const std::byte> bytes) -> Result<void> {
                  const std::lock_guard lock(mutex);
                  table[std::to_string(rank) + key] = Bytes(bytes.begin(), bytes.end());
                  return {};
                },
                .fetch = [&](std::uint32_t from, const std::string& key, Deadline deadline) -> Result<Bytes> {
                  while (true) {
                    {
                      const std::lock_guard lock(mutex);
                      const auto found = table.find(std::to_string(from) + key);
                      if (found != table.end()) return found->second;
                    }
                    if (std::chrono::steady_clock::now() > deadline)
                      return Error(Code::kDeviceUnavailable, Layer::kProgram, "not there");
                    std::this_thread::sleep_for(1ms);
                  }
                }})
        .value();
  };
  auto one = std::async(std::launch::async, [&] { return Cluster::join({.exchange = exchange(1, "wrong")}); });
  const auto zero = Cluster::join({.exchange = exchange(0, "right")});
  const auto other = one.get();
  for (const auto* each : {&zero, &other}) {
    ASSERT_FALSE(each->has_value());
    EXPECT_EQ(each->error().code(), Code::kInvalidData);
    EXPECT_NE(each->error().message().find("token"), std::string::npos) << each->error().message();
  }
}

// Their wire formats differ, so that anything might happen later.
TEST_F(ClusterTest, RefusesARankWithAnotherVersionOfUcx) {
  const char* const other = std::getenv("BERTH_TEST_UCX");
  if (other == nullptr) GTEST_SKIP() << "set BERTH_TEST_UCX to the libucp.so.0 of another version";
  RankProcess one(folder_, 1, 2, {.environment = {std::string("BERTH_UCX=") + other}});
  const auto cluster = join();
  ASSERT_FALSE(cluster.has_value()) << "is BERTH_TEST_UCX of the same version?";
  EXPECT_EQ(cluster.error().code(), Code::kInvalidData);
  EXPECT_NE(cluster.error().message().find("rank 1 has UCX"), std::string::npos) << cluster.error().message();
  EXPECT_NE(one.joined().find("rank 0 has UCX"), std::string::npos);
}

TEST_F(ClusterTest, SaysOnARankWithoutUcxWhatToInstall) {
  RankProcess one(folder_, 1, 2, {.environment = {"BERTH_UCX=/nonexistent/libucp.so.0"}});
  const std::string answer = one.joined();
  EXPECT_EQ(answer.substr(0, 23), "error DeviceUnavailable") << answer;
  EXPECT_NE(answer.find("apt install libucx0"), std::string::npos) << answer;
}

TEST_F(ClusterTest, RefusesAnInterfaceThatDoesNotExist) {
  const auto cluster = join(1, {.interfaces = {"nosuch0"}});
  ASSERT_FALSE(cluster.has_value());
  EXPECT_EQ(cluster.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(cluster.error().message().find("nosuch0"), std::string::npos) << cluster.error().message();
}

TEST_F(ClusterTest, RefusesTimesThatAreNotPositive) {
  const auto cluster = join(1, {.give_up_after = 0ms});
  ASSERT_FALSE(cluster.has_value());
  EXPECT_EQ(cluster.error().code(), Code::kInvalidArgument);
}

TEST_F(ClusterTest, ReadsAndWritesAWindowOfAnotherRank) {
  for (const char* transports : {"", "tcp"}) {
    JobFolder folder;
    RankProcess other(folder, 1, 2, {.transports = transports});
    const auto cluster =
        Cluster::join({.exchange = folder.exchange(0, 2), .transports = transports, .give_up_after = 60s}).value();
    EXPECT_EQ(other.joined(), "ok joined");
    const std::size_t bytes = (9 << 20) + 17;  // several pieces
    const RemoteWindow window = other.open("w", bytes, Access::kReadWrite, 7);
    EXPECT_EQ(window.rank, 1u);
    EXPECT_EQ(window.bytes, bytes);
    const auto far = cluster->import(window);
    ASSERT_TRUE(far.has_value()) << far.error().message();
    EXPECT_EQ(far->device().name(), "REMOTE:1");
    EXPECT_TRUE(far->is_foreign());
    EXPECT_TRUE(contents(*far) == test::rank_pattern_bytes(7, bytes));
    far->copyin(test::rank_pattern_bytes(9, bytes)).value();
    EXPECT_EQ(other.ask("arrived w 1"), "ok");
    EXPECT_EQ(other.ask("holds w 9"), "ok");

    // From host memory, without a staging copy and before a submit.
    const auto near = Buffer::allocate(device("CPU").value(), u8, {bytes}).value();
    near.copyin(test::rank_pattern_bytes(11, bytes)).value();
    const auto queue = far->device().make_queue().value();
    queue->copy(near.window().value(), far->window().value()).value();
    queue->finish().value();
    EXPECT_EQ(other.ask("arrived w 2"), "ok");
    EXPECT_EQ(other.ask("holds w 11"), "ok");
    // And back.
    near.copyin(Bytes(bytes)).value();
    queue->copy(far->window().value(), near.window().value()).value();
    queue->finish().value();
    EXPECT_TRUE(contents(near) == test::rank_pattern_bytes(11, bytes));
  }
}

TEST_F(ClusterTest, RefusesAStaleWindow) {
  RankProcess other(folder_, 1, 2);
  const auto cluster = join().value();
  EXPECT_EQ(other.joined(), "ok joined");
  const RemoteWindow window = other.open("w", 4096, Access::kReadWrite, 7);
  const auto far = cluster->import(window).value();
  const auto twice = cluster->import(window).value();
  EXPECT_EQ(contents(far), test::rank_pattern_bytes(7, 4096));
  EXPECT_EQ(other.ask("close w"), "ok");
  Bytes bytes(4096);
  for (const Buffer& each : {far, twice}) {
    const auto read = each.copyout(bytes);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), Code::kNotFound);
    EXPECT_NE(read.error().message().find("stale"), std::string::npos) << read.error().message();
    const auto written = each.copyin(bytes);
    ASSERT_FALSE(written.has_value());
    EXPECT_EQ(written.error().code(), Code::kNotFound);
  }
  const auto again = cluster->import(window);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), Code::kNotFound);
  // A number that exists, of another generation.
  RemoteWindow forged = other.open("v", 4096, Access::kReadWrite, 8);
  EXPECT_TRUE(cluster->import(forged).has_value());
  ++forged.generation;
  const auto refused = cluster->import(forged);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kNotFound);
  EXPECT_EQ(other.ask("close w").substr(0, 14), "error NotFound");
}

TEST_F(ClusterTest, KeepsToTheAccessOfAWindow) {
  RankProcess other(folder_, 1, 2);
  const auto cluster = join().value();
  EXPECT_EQ(other.joined(), "ok joined");
  Bytes bytes(64);
  const auto readable = cluster->import(other.open("r", 64, Access::kRead, 1)).value();
  EXPECT_TRUE(readable.is_read_only());
  EXPECT_EQ(readable.copyin(bytes).error().code(), Code::kReadOnly);
  EXPECT_TRUE(readable.copyout(bytes).has_value());
  const auto writable = cluster->import(other.open("w", 64, Access::kWrite, 1)).value();
  EXPECT_TRUE(writable.copyin(bytes).has_value());
  EXPECT_EQ(writable.copyout(bytes).error().code(), Code::kInvalidUsage);
}

TEST_F(ClusterTest, OpensOnlyWhatTheHostCanAccess) {
  RankProcess other(folder_, 1, 2, {.lends = 1 << 20});
  const auto cluster = join().value();
  const auto far = Buffer::allocate(cluster->device(1).value(), u8, {64}).value();
  const auto near = Buffer::allocate(device("CPU").value(), f32, {4, 4}).value();
  const auto window = cluster->open(near, Access::kRead);
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->dtype, f32);
  EXPECT_EQ(window->shape, Shape({4, 4}));
  EXPECT_EQ(cluster->counters().windows, 1u);
  EXPECT_EQ(cluster->import(*window).error().code(), Code::kInvalidArgument) << "its own";
  EXPECT_TRUE(cluster->close(*window).has_value());
  EXPECT_EQ(cluster->close(*window).error().code(), Code::kNotFound);
  EXPECT_EQ(cluster->arrived(*window, 1).error().code(), Code::kNotFound);
  EXPECT_EQ(cluster->open(Buffer()).has_value(), false);
  EXPECT_EQ(cluster->counters().windows, 0u);
}

TEST_F(ClusterTest, HearsOfWhatArrives) {
  RankProcess other(folder_, 1, 2);
  const auto cluster = join().value();
  EXPECT_EQ(other.joined(), "ok joined");
  const auto near = Buffer::allocate(device("CPU").value(), u8, {100'000}, {.zero = true}).value();
  const RemoteWindow window = cluster->open(near).value();
  const Timepoint first = cluster->arrived(window, 1).value(), third = cluster->arrived(window, 3).value();
  EXPECT_FALSE(is_reached(first));
  const std::string text = test::word_of(window);
  EXPECT_EQ(other.ask("put " + text + " 5"), "ok");
  EXPECT_TRUE(wait(first).has_value());
  EXPECT_TRUE(contents(near) == test::rank_pattern_bytes(5, 100'000));
  EXPECT_FALSE(is_reached(third));
  other.send("put " + text + " 6");
  other.send("put " + text + " 7");
  // A queue of another device waits for it.
  const auto queue = device("CPU").value()->make_queue().value();
  EXPECT_TRUE(queue->wait_for(third).has_value());
  EXPECT_TRUE(contents(near) == test::rank_pattern_bytes(7, 100'000));
  EXPECT_EQ(other.answer(), "ok");
  EXPECT_EQ(other.answer(), "ok");
  EXPECT_TRUE(is_reached(cluster->arrived(window, 0).value()));
  EXPECT_TRUE(cluster->close(window).has_value());
}

// Each rank counts for itself, and goes on counting when it imports the window again.
TEST_F(ClusterTest, CountsWhatArrivesFromSeveralRanks) {
  for (const char* transports : {"", "tcp"}) {
    const JobFolder folder;
    RankProcess one(folder, 1, 3, {.transports = transports}), two(folder, 2, 3, {.transports = transports});
    const auto cluster = Cluster::join({.exchange = folder.exchange(0, 3), .transports = transports}).value();
    EXPECT_EQ(one.joined(), "ok joined");
    EXPECT_EQ(two.joined(), "ok joined");
    const auto near = Buffer::allocate(device("CPU").value(), u8, {5000}, {.zero = true}).value();
    const RemoteWindow window = cluster->open(near).value();
    const std::string text = test::word_of(window);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(one.ask("put " + text + " 1"), "ok");
      EXPECT_EQ(two.ask("put " + text + " 2"), "ok");
    }
    EXPECT_TRUE(wait(cluster->arrived(window, 6).value()).has_value());
    EXPECT_FALSE(is_reached(cluster->arrived(window, 7).value()));
    // A thread that sleeps until then is woken.
    auto seventh =
        std::async(std::launch::async, [&] { return wait(cluster->arrived(window, 7).value()).has_value(); });
    EXPECT_EQ(seventh.wait_for(50ms), std::future_status::timeout);
    EXPECT_EQ(one.ask("put " + text + " 1"), "ok");
    EXPECT_TRUE(seventh.get());
    EXPECT_TRUE(cluster->close(window).has_value());
  }
}

// One machine: nothing is asked of the owner, who may be busy, or stopped.
TEST_F(ClusterTest, UsesAWindowWhileItsOwnerDoesNothing) {
  RankProcess other(folder_, 1, 2);
  const auto cluster = join(2, {.give_up_after = 60s}).value();
  EXPECT_EQ(other.joined(), "ok joined");
  const std::size_t bytes = (5 << 20) + 3;
  const auto far = cluster->import(other.open("w", bytes, Access::kReadWrite, 7)).value();
  if (internal::ProcessMemory::open(std::stoi(other.value("pid"))) == nullptr)
    GTEST_SKIP() << "this system does not let a process at the memory of another";
  other.stop();
  EXPECT_TRUE(contents(far) == test::rank_pattern_bytes(7, bytes));
  EXPECT_TRUE(far.copyin(test::rank_pattern_bytes(8, bytes)).has_value());
  EXPECT_TRUE(contents(far) == test::rank_pattern_bytes(8, bytes));
  other.resume();
  EXPECT_EQ(other.ask("holds w 8"), "ok");
  EXPECT_EQ(other.ask("arrived w 1"), "ok");
}

// Where the number of a process means another one, as in a container, or the kernel refuses: by UCX.
TEST_F(ClusterTest, UsesUcxWhereTheKernelCannotCopy) {
  if (std::system("unshare --pid --fork true 2>/dev/null") != 0)
    GTEST_SKIP() << "this process may not make PID namespaces, which needs root";
  RankProcess other(folder_, 1, 2, {.lends = 16 << 20, .before = {"unshare", "--pid", "--fork", "--kill-child"}});
  const auto cluster = join(2, {.give_up_after = 60s}).value();
  EXPECT_EQ(other.joined(), "ok joined");
  EXPECT_LT(std::stoi(other.value("pid")), 10) << "its own numbers";
  const auto leased = Buffer::allocate(cluster->device(1).value(), u8, {5 << 20}).value();
  EXPECT_FALSE(leased.cpu_accessible());
  leased.copyin(test::rank_pattern_bytes(3, 5 << 20)).value();
  EXPECT_TRUE(contents(leased) == test::rank_pattern_bytes(3, 5 << 20));
  const std::size_t bytes = (5 << 20) + 3;
  const auto far = cluster->import(other.open("w", bytes, Access::kReadWrite, 7)).value();
  EXPECT_TRUE(contents(far) == test::rank_pattern_bytes(7, bytes));
  EXPECT_TRUE(far.copyin(test::rank_pattern_bytes(8, bytes)).has_value());
  EXPECT_EQ(other.ask("arrived w 1"), "ok");
  EXPECT_EQ(other.ask("holds w 8"), "ok");
}

TEST_F(ClusterTest, GivesUpOnAnArrivalThatDoesNotCome) {
  RankProcess other(folder_, 1, 2);
  folder_.await({1}, 2);
  const auto cluster = join(2, {.give_up_after = 2s}).value();
  const auto near = Buffer::allocate(device("CPU").value(), u8, {64}).value();
  const RemoteWindow window = cluster->open(near).value();
  const auto waited = wait(cluster->arrived(window, 1).value());
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(waited.error().message().find("0 of 1"), std::string::npos) << waited.error().message();
}

TEST_F(ClusterTest, WaitsForAllRanksAtABarrier) {
  RankProcess one(folder_, 1, 3), two(folder_, 2, 3);
  const auto cluster = join(3).value();
  for (int round = 0; round < 5; ++round) {
    one.send("barrier");
    two.send("barrier");
    EXPECT_TRUE(cluster->barrier().has_value());
  }
  EXPECT_EQ(one.joined(), "ok joined");
  for (int round = 0; round < 5; ++round) EXPECT_EQ(one.answer(), "ok");
}

TEST_F(ClusterTest, NamesWhoIsMissingAtABarrier) {
  RankProcess one(folder_, 1, 3), two(folder_, 2, 3);
  folder_.await({1, 2}, 3);
  const auto cluster = join(3, {.give_up_after = 3s}).value();
  EXPECT_EQ(one.joined(), "ok joined");
  one.send("barrier");
  const auto waited = cluster->barrier();
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(waited.error().message().find(": ranks 2"), std::string::npos) << waited.error().message();
}

TEST_F(ClusterTest, ServesSeveralThreadsAtOnce) {
  RankProcess other(folder_, 1, 2, {.lends = 64 << 20, .transports = "tcp"});
  const auto cluster = join(2, {.transports = "tcp"}).value();
  const auto far = cluster->device(1).value();
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < 20; ++i) {
          const std::size_t bytes = 1 + 100'003 * (i % 4);
          const auto buffer = Buffer::allocate(far, u8, {bytes});
          if (!buffer || !buffer->copyin(test::rank_pattern_bytes(t * 100 + i, bytes)) ||
              contents(*buffer) != test::rank_pattern_bytes(t * 100 + i, bytes))
            wrong.fetch_add(1);
        }
      });
  }
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace berth
