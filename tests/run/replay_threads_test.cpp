// Runs that overlap: each has an arena of its own, and memory that is not needed comes back.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "berth/run/replay.h"
#include "support/replay_fixtures.h"

namespace berth {
namespace {

using testing::FakeMemory;
using testing::first_fit;
using Dims = std::vector<std::int64_t>;
constexpr std::size_t kKiB = 1024;

struct Rig {
  std::shared_ptr<FakeMemory> arena = std::make_shared<FakeMemory>();
  std::shared_ptr<FakeMemory> pool = std::make_shared<FakeMemory>();
  std::unique_ptr<Replay> replay;
  explicit Rig(ReplayOptions options = {}) {
    if (!options.planner) options.planner = first_fit;
    replay = std::make_unique<Replay>(arena, pool, options);
  }
  // Records and plans runs of one request.
  void learn(const char* key, std::size_t bytes) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(replay->begin_run(key));
      replay->release(replay->allocate(bytes));
      replay->end_run();
    }
  }
};

// Lets threads go on together.
class Barrier {
 public:
  explicit Barrier(unsigned count) : count_(count) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    const unsigned turn = turn_;
    if (++arrived_ == count_) {
      arrived_ = 0;
      ++turn_;
      condition_.notify_all();
    } else {
      condition_.wait(lock, [&] { return turn_ != turn; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  unsigned count_, arrived_ = 0, turn_ = 0;
};

template <class Work>
void on_threads(unsigned count, Work&& work) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) threads.emplace_back([&, t] { work(t); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ReplayThreads, RunsThatOverlapEachFollowThePlanInAnArenaOfTheirOwn) {
  Rig rig;
  rig.learn("k", 8 * kKiB);
  Barrier barrier(4);
  std::array<void*, 4> memory{};
  std::array<ReplayRun, 4> did;
  on_threads(4, [&](unsigned t) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    memory[t] = rig.replay->allocate(8 * kKiB);
    barrier.arrive();
    rig.replay->release(memory[t]);
    did[t] = rig.replay->end_run();
  });
  for (unsigned t = 0; t < 4; ++t) {
    EXPECT_EQ(did[t].planned, 1u);
    EXPECT_TRUE(rig.arena->holds(memory[t]));
    for (unsigned other = 0; other < t; ++other) EXPECT_NE(memory[t], memory[other]);
  }
  const ReplayCounters counters = rig.replay->counters();
  EXPECT_EQ(counters.arenas, 4u);
  EXPECT_EQ(counters.arenas_peak, 4u);
  EXPECT_EQ(counters.arena_bytes, 4 * 8 * kKiB) << "as many plans as runs, and no more";
  EXPECT_EQ(counters.deviated, 0u);
}

TEST(ReplayThreads, ACappedSetServesTheOthersFromThePoolIfAsked) {
  Rig rig({.max_arenas = 2, .when_full = WhenFull::kPool});
  rig.learn("k", 8 * kKiB);
  Barrier barrier(5);
  std::atomic<unsigned> planned{0};
  on_threads(5, [&](unsigned) {
    EXPECT_TRUE(rig.replay->begin_run("k"));
    void* memory = rig.replay->allocate(8 * kKiB);
    barrier.arrive();
    rig.replay->release(memory);
    planned += static_cast<unsigned>(rig.replay->end_run().planned);
  });
  EXPECT_EQ(planned, 2u);
  EXPECT_EQ(rig.replay->counters().arenas, 2u);
  EXPECT_EQ(rig.replay->counters().pooled_runs, 3u);
  EXPECT_EQ(rig.replay->counters().pool_bytes, 0u);
}

TEST(ReplayThreads, ACappedSetMakesTheOthersWaitIfAsked) {
  Rig rig({.max_arenas = 2, .when_full = WhenFull::kWait});
  rig.learn("k", 8 * kKiB);
  std::atomic<unsigned> planned{0}, inside{0}, most{0};
  on_threads(6, [&](unsigned) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(rig.replay->begin_run("k"));
      const unsigned now = ++inside;
      unsigned seen = most.load();
      while (seen < now && !most.compare_exchange_weak(seen, now)) {
      }
      void* memory = rig.replay->allocate(8 * kKiB);
      std::this_thread::yield();
      rig.replay->release(memory);
      --inside;
      planned += static_cast<unsigned>(rig.replay->end_run().planned);
    }
  });
  EXPECT_EQ(planned, 120u);
  EXPECT_LE(most, 2u);
  EXPECT_LE(rig.replay->counters().arena_bytes, 2 * 8 * kKiB);
}

TEST(ReplayThreads, ARunThatWaitsTooLongTakesThePool) {
  Rig rig({.max_arenas = 1, .when_full = WhenFull::kWait, .max_wait = std::chrono::milliseconds(1)});
  rig.learn("k", kKiB);
  ASSERT_TRUE(rig.replay->begin_run("k"));
  std::thread([&] {
    EXPECT_TRUE(rig.replay->begin_run("k"));
    void* memory = rig.replay->allocate(kKiB);
    EXPECT_TRUE(rig.pool->holds(memory));
    rig.replay->release(memory);
    EXPECT_EQ(rig.replay->end_run().planned, 0u);
  }).join();
  EXPECT_EQ(rig.replay->counters().waits, 1u);
  rig.replay->end_run();
}

TEST(ReplayThreads, OnlyOneOfSeveralRunsWithANewKeyRecords) {
  Rig rig;
  std::atomic<unsigned> recorded{0};
  Barrier barrier(4);
  on_threads(4, [&](unsigned) {
    barrier.arrive();
    EXPECT_TRUE(rig.replay->begin_run("k"));
    void* memory = rig.replay->allocate(8 * kKiB);
    std::this_thread::yield();
    rig.replay->release(memory);
    recorded += rig.replay->end_run().recorded ? 1 : 0;
  });
  EXPECT_EQ(recorded, 1u);
  EXPECT_EQ(rig.replay->counters().pool_peak, 8 * kKiB) << "never two recordings at a time";
}

TEST(ReplayThreads, ARequestThatNobodyCanPlaceIsServedByThePoolAndCounted) {
  Rig rig;
  rig.learn("k", 8 * kKiB);
  Barrier begun(3), done(3);
  on_threads(3, [&](unsigned t) {
    if (t == 2) {
      begun.arrive();
      void* memory = rig.replay->allocate(8 * kKiB);  // of which of the two runs?
      EXPECT_TRUE(rig.pool->holds(memory));
      rig.replay->release(memory);
      done.arrive();
      return;
    }
    EXPECT_TRUE(rig.replay->begin_run("k"));
    begun.arrive();
    done.arrive();
    rig.replay->release(rig.replay->allocate(8 * kKiB));
    EXPECT_EQ(rig.replay->end_run().planned, 1u);
  });
  EXPECT_EQ(rig.replay->counters().unattributed, 1u);
}

TEST(ReplayThreads, ARecordingThatMissedRequestsIsNotPlanned) {
  Rig rig;
  rig.learn("other", kKiB);
  Barrier begun(2), done(2);
  std::thread other([&] {
    EXPECT_TRUE(rig.replay->begin_run("other"));
    begun.arrive();
    done.arrive();
    rig.replay->end_run();
  });
  ASSERT_TRUE(rig.replay->begin_run("k"));
  begun.arrive();
  std::thread([&] { rig.replay->release(rig.replay->allocate(kKiB)); }).join();
  rig.replay->release(rig.replay->allocate(kKiB));
  EXPECT_TRUE(rig.replay->end_run().recorded);
  done.arrive();
  other.join();
  EXPECT_EQ(rig.replay->trace("k"), nullptr);
}

TEST(ReplayThreads, MemoryMayBeReleasedByAnotherThreadAfterItsRun) {
  Rig rig;
  rig.learn("k", 8 * kKiB);
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* output = rig.replay->allocate(8 * kKiB);
  rig.replay->end_run();
  ASSERT_TRUE(rig.arena->holds(output));
  std::thread([&] { rig.replay->release(output); }).join();
  EXPECT_EQ(rig.replay->size_of(output), 0u);
}

// Threads with random shapes, kept outputs and deviations: no two live ranges ever share a byte.
TEST(ReplayThreads, NeverOverlapsLiveMemoryOfRunsThatOverlap) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    ReplayOptions options{.max_arenas = seed % 3, .decay = std::chrono::milliseconds(seed % 2)};
    options.when_full = seed % 4 < 2 ? WhenFull::kWait : WhenFull::kPool;
    options.max_plans = seed % 5 == 0 ? 4 : 64;
    Rig rig(options);
    std::atomic<bool> good{true};
    on_threads(4, [&](unsigned t) {
      std::mt19937 random(seed * 100 + t);
      struct Live {
        unsigned char* memory;
        std::size_t bytes;
        unsigned char mark;
      };
      std::vector<Live> live;
      const auto take = [&](std::size_t bytes) {
        auto* memory = static_cast<unsigned char*>(rig.replay->allocate(bytes));
        const auto mark = static_cast<unsigned char>(random());
        std::memset(memory, mark, bytes);
        live.push_back({memory, bytes, mark});
      };
      const auto give = [&](std::size_t i) {
        for (std::size_t b = 0; b < live[i].bytes; ++b)
          if (live[i].memory[b] != live[i].mark) good = false;
        rig.replay->release(live[i].memory);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      };
      for (int run = 0; run < 60; ++run) {
        const std::int64_t h = 1 + random() % 12, w = 1 + random() % 12;
        const std::size_t before = live.size();
        EXPECT_TRUE(rig.replay->begin_run(random() % 2 == 0 ? "a" : "b", Dims{h, w}));
        for (int layer = 1; layer < 8; ++layer) {
          take(static_cast<std::size_t>(32 * layer * h * w));
          if (layer % 2 == 0) give(before + (live.size() - before) / 2);
          if (random() % 40 == 0) take(777);
          if (random() % 50 == 0) std::this_thread::yield();
        }
        const bool keep_one = random() % 10 == 0;
        while (live.size() > before + (keep_one ? 1 : 0)) give(live.size() - 1);
        rig.replay->end_run();
        if (live.size() > 3) give(random() % live.size());
      }
      while (!live.empty()) give(0);
    });
    ASSERT_TRUE(good) << "seed " << seed;
    EXPECT_EQ(rig.replay->counters().pool_bytes, 0u);
    EXPECT_EQ(rig.replay->counters().runs, 240u);
    EXPECT_GT(rig.replay->counters().planned, 0u);
  }
}

// Memory whose pages come and go, and a clock that the test moves.
struct PagedRig {
  std::chrono::steady_clock::time_point time{};
  std::uint64_t resident = 0, faults = 0, given = 0;
  ReplayOptions options;
  std::unique_ptr<Rig> rig;

  PagedRig() {
    options.decay = std::chrono::seconds(10);
    options.clock = [this] { return time; };
    options.pages.fault_in = [this](const Block&, std::uint64_t, std::uint64_t bytes) {
      ++faults;
      resident += bytes;
    };
    options.pages.give_back = [this](const Block& block, std::uint64_t offset, std::uint64_t bytes) {
      EXPECT_LE(offset + bytes, block.bytes);
      ++given;
      resident -= bytes;
    };
    rig = std::make_unique<Rig>(options);
  }
  void run(const char* key, std::size_t bytes) {
    EXPECT_TRUE(rig->replay->begin_run(key));
    rig->replay->release(rig->replay->allocate(bytes));
    rig->replay->end_run();
  }
  // Runs it once a second.
  void run_for(int seconds, const char* key, std::size_t bytes) {
    for (int i = 0; i < seconds; ++i) {
      time += std::chrono::seconds(1);
      run(key, bytes);
    }
  }
};

TEST(ReplayDecay, GivesBackWhatRecentRunsDidNotNeedAndKeepsTheMapping) {
  PagedRig paged;
  const auto held = [&] { return paged.rig->replay->counters().arena_bytes; };
  paged.run_for(5, "small", 8 * kKiB);
  EXPECT_EQ(held(), 8 * kKiB);
  paged.run_for(2, "large", 80 * kKiB);
  EXPECT_EQ(held(), 80 * kKiB);
  const int blocks = paged.rig->arena->allocations;
  const std::uint64_t resident = paged.resident;
  paged.run_for(25, "small", 8 * kKiB);
  EXPECT_EQ(held(), 8 * kKiB);
  EXPECT_EQ(resident - paged.resident, 72 * kKiB);
  EXPECT_EQ(paged.rig->replay->counters().given_back, 72 * kKiB);
  paged.run("large", 80 * kKiB);
  EXPECT_EQ(held(), 80 * kKiB);
  EXPECT_EQ(paged.resident, resident);
  EXPECT_EQ(paged.rig->arena->allocations, blocks) << "no new mapping";
}

TEST(ReplayDecay, ASteadyLoadNeverFaultsAfterItsWarmUp) {
  PagedRig paged;
  const auto mix = [&] {
    paged.run_for(3, "small", 8 * kKiB);
    paged.run_for(1, "large", 80 * kKiB);
  };
  for (int i = 0; i < 3; ++i) mix();
  const std::uint64_t faults = paged.faults;
  for (int i = 0; i < 50; ++i) mix();
  EXPECT_EQ(paged.faults, faults);
  EXPECT_EQ(paged.given, 0u);
}

TEST(ReplayDecay, GivesBackInAnIdleProcessWhenATimerAsks) {
  PagedRig paged;
  paged.run_for(3, "k", 8 * kKiB);
  EXPECT_EQ(paged.rig->replay->give_back(), 0u);
  paged.time += std::chrono::seconds(11);
  EXPECT_EQ(paged.rig->replay->give_back(), 0u) << "it was used in the period that just ended";
  paged.time += std::chrono::seconds(11);
  EXPECT_EQ(paged.rig->replay->give_back(), 8 * kKiB);
  EXPECT_EQ(paged.resident, 0u);
  paged.run("k", 8 * kKiB);
  EXPECT_EQ(paged.resident, 8 * kKiB);
  EXPECT_EQ(paged.rig->replay->give_back(true), 8 * kKiB);
}

TEST(ReplayDecay, NeverGivesBackWhatIsLive) {
  PagedRig paged;
  paged.run_for(2, "k", 8 * kKiB);
  ASSERT_TRUE(paged.rig->replay->begin_run("k"));
  void* output = paged.rig->replay->allocate(8 * kKiB);
  paged.rig->replay->end_run();
  EXPECT_EQ(paged.rig->replay->give_back(true), 0u);
  EXPECT_EQ(paged.resident, 8 * kKiB);
  paged.rig->replay->release(output);
  EXPECT_EQ(paged.rig->replay->give_back(true), 8 * kKiB);
}

TEST(ReplayDecay, TrimsThePoolToWhatRecentRunsTookFromIt) {
  PagedRig paged;
  Replay& replay = *paged.rig->replay;
  void* kept = nullptr;
  // Once a second: an output that is kept until the next one is there, so it comes from the pool.
  const auto serve_for = [&](int seconds, std::size_t bytes) {
    for (int i = 0; i < seconds; ++i) {
      paged.time += std::chrono::seconds(1);
      replay.release(std::exchange(kept, replay.allocate(bytes)));
      paged.run("k", kKiB);
    }
  };
  serve_for(15, 80 * kKiB);
  const int trims = paged.rig->pool->trims;
  serve_for(30, 75 * kKiB);
  EXPECT_EQ(paged.rig->pool->trims, trims) << "a load that varies a little is not trimmed";
  serve_for(30, 8 * kKiB);
  EXPECT_EQ(paged.rig->pool->trims, trims + 1);
  EXPECT_EQ(paged.rig->pool->trimmed_to, 8 * kKiB) << "beside the one that is live, for the next";
  serve_for(60, 8 * kKiB);
  EXPECT_EQ(paged.rig->pool->trims, trims + 1);
  replay.release(kept);
  paged.time += std::chrono::seconds(30);
  replay.give_back();
  EXPECT_EQ(paged.rig->pool->trims, trims + 2) << "an idle process";
  EXPECT_EQ(paged.rig->pool->trimmed_to, 0u);
  replay.give_back(true);
  EXPECT_EQ(paged.rig->pool->trims, trims + 3);
}

TEST(ReplayDecay, TimesWithoutEndAreNotInThePast) {
  PagedRig paged;
  ReplayOptions options = paged.options;
  options.decay = options.max_wait = std::chrono::milliseconds::max();
  options.max_arenas = 1;
  paged.rig = std::make_unique<Rig>(options);
  paged.run_for(3, "large", 80 * kKiB);
  paged.run_for(100, "small", 8 * kKiB);
  EXPECT_EQ(paged.rig->replay->counters().arena_bytes, 80 * kKiB);
  EXPECT_EQ(paged.given, 0u);
  // A run that may wait for ever gets the arena.
  ASSERT_TRUE(paged.rig->replay->begin_run("small"));
  std::thread other([&] { paged.run("small", 8 * kKiB); });
  paged.rig->replay->end_run();
  other.join();
  EXPECT_EQ(paged.rig->replay->counters().pooled_runs, 0u);
}

TEST(ReplayDecay, ReleasesAnArenaWhosePagesCannotComeAndGo) {
  std::chrono::steady_clock::time_point time{};
  Rig rig({.decay = std::chrono::seconds(10), .clock = [&] { return time; }});
  rig.learn("large", 80 * kKiB);
  rig.learn("small", 8 * kKiB);
  EXPECT_EQ(rig.arena->live_bytes(), 80 * kKiB);
  for (int i = 0; i < 30; ++i) {
    time += std::chrono::seconds(1);
    ASSERT_TRUE(rig.replay->begin_run("small"));
    rig.replay->release(rig.replay->allocate(8 * kKiB));
    rig.replay->end_run();
  }
  EXPECT_EQ(rig.arena->live_bytes(), 8 * kKiB);
}

}  // namespace
}  // namespace berth
