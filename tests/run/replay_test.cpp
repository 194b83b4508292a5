#include "berth/run/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "support/replay_fixtures.h"
#include "support/seed.h"

namespace berth {
namespace {

using testing::FakeMemory;
using testing::first_fit;

constexpr std::size_t kKiB = 1024;

struct Rig {
  std::shared_ptr<FakeMemory> arena = std::make_shared<FakeMemory>();
  std::shared_ptr<FakeMemory> pool = std::make_shared<FakeMemory>();
  ReplayOptions options;
  std::unique_ptr<Replay> replay;

  explicit Rig(ReplayOptions with = {}) : options(std::move(with)) {
    if (!options.planner) options.planner = first_fit;
    replay = std::make_unique<Replay>(arena, pool, options);
  }
  bool in_arena(const void* memory) const { return arena->holds(memory); }
};

// a, b live together; c takes a's place; d outlives the run.
struct Chain {
  void* a;
  void* b;
  void* c;
  void* d;
};
Chain chain(Replay& replay, bool release_last = true) {
  Chain run{};
  run.a = replay.allocate(4 * kKiB);
  run.b = replay.allocate(2 * kKiB);
  replay.release(run.a);
  run.c = replay.allocate(3 * kKiB);
  replay.release(run.b);
  replay.release(run.c);
  run.d = replay.allocate(1 * kKiB);
  if (release_last) replay.release(run.d);
  return run;
}

TEST(Replay, AlignsARequestToItsOwnSizeWhereThatIsLess) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  for (const std::size_t bytes : {1u, 16u, 17u, 48u, 64u, 5000u}) rig.replay->release(rig.replay->allocate(bytes));
  rig.replay->release(rig.replay->allocate(4, 256));
  rig.replay->end_run();
  const auto trace = rig.replay->trace("k");
  ASSERT_NE(trace, nullptr);
  std::vector<std::uint64_t> alignments;
  for (const auto& request : trace->requests) alignments.push_back(request.alignment);
  EXPECT_EQ(alignments, (std::vector<std::uint64_t>{1, 16, 16, 32, 64, 64, 256}));
}

TEST(Replay, RecordsTheFirstRunAndServesTheSecondFromOneArena) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  chain(*rig.replay);
  const ReplayRun first = rig.replay->end_run();
  EXPECT_TRUE(first.recorded);
  EXPECT_EQ(first.requests, 4u);
  EXPECT_EQ(rig.arena->allocations, 0);

  ASSERT_TRUE(rig.replay->begin_run("k"));
  const Chain run = chain(*rig.replay);
  const ReplayRun second = rig.replay->end_run();
  EXPECT_FALSE(second.recorded);
  EXPECT_EQ(second.deviated, 0u);
  EXPECT_EQ(second.reordered, 0u);
  EXPECT_EQ(rig.arena->allocations, 1);
  for (void* memory : {run.a, run.b, run.c, run.d}) EXPECT_TRUE(rig.in_arena(memory));
  EXPECT_EQ(run.a, run.c) << "c lives after a and fits into its bytes";
  EXPECT_EQ(rig.replay->counters().arena_bytes, 6 * kKiB);
  EXPECT_EQ(rig.replay->trace("k")->live_peak(), 6 * kKiB);
  EXPECT_EQ(rig.replay->plan("k")->size, 6 * kKiB);
}

TEST(Replay, GivesBackThePoolsCacheBeforeItTakesTheArena) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  chain(*rig.replay);
  rig.replay->end_run();
  EXPECT_EQ(rig.pool->trims, 0);
  ASSERT_TRUE(rig.replay->plan_recorded());
  EXPECT_EQ(rig.pool->trims, 1);
  EXPECT_EQ(rig.arena->allocations, 1);
}

TEST(Replay, PlansAnOutputThatIsReleasedBetweenRunsInTheArena) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* output = chain(*rig.replay, false).d;
  rig.replay->end_run();
  rig.replay->release(output);
  ASSERT_TRUE(rig.replay->begin_run("k"));
  output = chain(*rig.replay, false).d;
  rig.replay->end_run();
  EXPECT_TRUE(rig.in_arena(output));
  rig.replay->release(output);
}

TEST(Replay, LeavesAnOutputThatIsKeptAcrossRunsToThePool) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* first = chain(*rig.replay, false).d;
  rig.replay->end_run();
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* second = chain(*rig.replay, false).d;
  const ReplayRun run = rig.replay->end_run();
  EXPECT_FALSE(rig.in_arena(second));
  EXPECT_NE(first, second);
  EXPECT_EQ(run.deviated, 0u) << "a kept request is planned to be the pool's";
  EXPECT_TRUE(rig.replay->trace("k")->requests[3].kept);
  rig.replay->release(first);
  rig.replay->release(second);
  EXPECT_EQ(rig.replay->counters().pool_bytes, 0u);
}

TEST(Replay, PlansAgainWhenAnOutputInTheArenaIsKeptIntoTheNextRun) {
  Rig rig;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    chain(*rig.replay);
    rig.replay->end_run();
  }
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* kept = chain(*rig.replay, false).d;
  rig.replay->end_run();
  ASSERT_TRUE(rig.in_arena(kept));
  std::memset(kept, 0x5a, kKiB);

  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* other = chain(*rig.replay, false).d;
  std::memset(other, 0xff, kKiB);
  rig.replay->end_run();
  EXPECT_FALSE(rig.in_arena(other));
  const auto* bytes = static_cast<const unsigned char*>(kept);
  EXPECT_TRUE(std::all_of(bytes, bytes + kKiB, [](unsigned char b) { return b == 0x5a; }));
  rig.replay->release(kept);
  rig.replay->release(other);
}

TEST(Replay, ServesAnUnplannedRequestFromThePoolAndCountsIt) {
  Rig rig;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    chain(*rig.replay);
    rig.replay->end_run();
  }
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* surprise = rig.replay->allocate(12345);
  const Chain run = chain(*rig.replay);
  EXPECT_FALSE(rig.in_arena(surprise));
  EXPECT_TRUE(rig.in_arena(run.a));
  rig.replay->release(surprise);
  const ReplayRun stats = rig.replay->end_run();
  EXPECT_EQ(stats.deviated, 1u);
  EXPECT_EQ(stats.requests, 5u);
  EXPECT_EQ(rig.replay->counters().deviating_runs, 1u);
}

TEST(Replay, ServesRequestsInAnotherOrderFromTheirOwnSlots) {
  Rig rig;
  const auto run = [&](bool swapped) {
    EXPECT_TRUE(rig.replay->begin_run("k"));
    void* x = rig.replay->allocate(swapped ? 2 * kKiB : 4 * kKiB);
    void* y = rig.replay->allocate(swapped ? 4 * kKiB : 2 * kKiB);
    EXPECT_TRUE(rig.replay->counters().runs == 0 || (rig.in_arena(x) && rig.in_arena(y)));
    rig.replay->release(x);
    rig.replay->release(y);
    return rig.replay->end_run();
  };
  run(false);
  EXPECT_EQ(run(false).reordered, 0u);
  const ReplayRun swapped = run(true);
  EXPECT_EQ(swapped.reordered, 1u);
  EXPECT_EQ(swapped.deviated, 0u);
}

TEST(Replay, NeverHandsOutASlotWhoseBytesAreStillLive) {
  Rig rig;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    chain(*rig.replay);
    rig.replay->end_run();
  }
  // c's slot is a's. This time a is not released before c is asked for.
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* a = rig.replay->allocate(4 * kKiB);
  void* b = rig.replay->allocate(2 * kKiB);
  void* c = rig.replay->allocate(3 * kKiB);
  EXPECT_TRUE(rig.in_arena(a));
  EXPECT_FALSE(rig.in_arena(c));
  for (void* memory : {a, b, c}) rig.replay->release(memory);
  EXPECT_EQ(rig.replay->end_run().deviated, 1u);
}

TEST(Replay, RenewsThePlanAfterAFewDeviatingRunsInARow) {
  Rig rig({.renew_after = 2});
  const auto run = [&](std::size_t bytes) {
    EXPECT_TRUE(rig.replay->begin_run("k"));
    void* memory = rig.replay->allocate(bytes);
    const bool planned = rig.in_arena(memory);
    rig.replay->release(memory);
    rig.replay->end_run();
    return planned;
  };
  run(kKiB);
  EXPECT_TRUE(run(kKiB));
  EXPECT_FALSE(run(5 * kKiB));
  EXPECT_EQ(rig.replay->counters().renewals, 0u);
  EXPECT_FALSE(run(5 * kKiB));
  EXPECT_EQ(rig.replay->counters().renewals, 1u);
  EXPECT_TRUE(run(5 * kKiB));
  EXPECT_EQ(rig.replay->counters().arena_bytes, 5 * kKiB);
}

TEST(Replay, StopsRenewingForAnEngineThatNeverRepeatsItself) {
  Rig rig({.renew_after = 1, .max_renewals = 2});
  for (std::size_t i = 1; i < 20; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    rig.replay->release(rig.replay->allocate(i * 100));
    rig.replay->end_run();
  }
  EXPECT_EQ(rig.replay->counters().renewals, 2u);
}

TEST(Replay, SharesOneArenaBetweenKeysAsLargeAsTheLargest) {
  Rig rig;
  for (int i = 0; i < 2; ++i)
    for (const auto& [key, bytes] : {std::pair{"small", 3 * kKiB}, {"large", 9 * kKiB}, {"middle", 5 * kKiB}}) {
      ASSERT_TRUE(rig.replay->begin_run(key));
      void* memory = rig.replay->allocate(bytes);
      EXPECT_EQ(rig.in_arena(memory), i == 1) << key;
      rig.replay->release(memory);
      rig.replay->end_run();
    }
  EXPECT_EQ(rig.replay->counters().arena_bytes, 9 * kKiB);
  EXPECT_EQ(rig.arena->live_bytes(), 9 * kKiB);
  EXPECT_EQ(rig.replay->counters().plans, 3u);
}

TEST(Replay, KeepsAnOutgrownArenaUntilItsLastSlotIsReleased) {
  Rig rig;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("small"));
    chain(*rig.replay);
    rig.replay->end_run();
  }
  ASSERT_TRUE(rig.replay->begin_run("small"));
  void* held = chain(*rig.replay, false).d;
  rig.replay->end_run();
  std::memset(held, 0x11, kKiB);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("large"));
    void* memory = rig.replay->allocate(64 * kKiB);
    std::memset(memory, 0xee, 64 * kKiB);
    rig.replay->release(memory);
    rig.replay->end_run();
  }
  EXPECT_EQ(rig.arena->live_count(), 2u);
  EXPECT_EQ(static_cast<unsigned char*>(held)[kKiB - 1], 0x11);
  rig.replay->release(held);
  EXPECT_EQ(rig.arena->live_count(), 1u);
}

TEST(Replay, JoinsARunThatBeginsInsideAnotherWithoutCorruptingEither) {
  Rig rig;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    chain(*rig.replay);
    rig.replay->end_run();
  }
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* a = rig.replay->allocate(4 * kKiB);
  ASSERT_TRUE(rig.replay->begin_run("k"));
  void* other = rig.replay->allocate(4 * kKiB);
  EXPECT_TRUE(rig.in_arena(a));
  EXPECT_FALSE(rig.in_arena(other));
  rig.replay->release(other);
  EXPECT_EQ(rig.replay->end_run().requests, 0u);
  rig.replay->release(a);
  EXPECT_EQ(rig.replay->end_run().requests, 2u);
}

TEST(Replay, ServesMemoryAskedForOutsideARunFromThePool) {
  Rig rig;
  void* weights = rig.replay->allocate(kKiB, 256);
  EXPECT_TRUE(rig.pool->holds(weights));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights) % 256, 0u);
  EXPECT_EQ(rig.replay->counters().pool_bytes, kKiB);
  rig.replay->release(weights);
  EXPECT_EQ(rig.replay->counters().pool_bytes, 0u);
  EXPECT_EQ(rig.replay->counters().pool_peak, kKiB);
}

TEST(Replay, KnowsItsOwnMemoryAndHowMuchWasAskedFor) {
  Rig rig;
  int other = 0;
  EXPECT_FALSE(rig.replay->owns(&other));
  EXPECT_EQ(rig.replay->size_of(&other), 0u);
  for (const bool planned : {false, true}) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    void* first = rig.replay->allocate(1000);
    void* second = rig.replay->allocate(3000);
    EXPECT_EQ(rig.in_arena(first), planned);
    EXPECT_TRUE(rig.replay->owns(first));
    EXPECT_EQ(rig.replay->size_of(first), 1000u);
    EXPECT_EQ(rig.replay->size_of(second), 3000u);
    rig.replay->release(first);
    EXPECT_EQ(rig.replay->size_of(first), 0u);
    void* unplanned = planned ? rig.replay->allocate(777) : nullptr;
    EXPECT_EQ(rig.replay->size_of(second), 3000u) << "also after the run left the plan";
    rig.replay->release(unplanned);
    rig.replay->release(second);
    rig.replay->end_run();
  }
}

TEST(Replay, GivesNullForZeroBytesAndIgnoresNull) {
  Rig rig;
  EXPECT_EQ(rig.replay->allocate(0), nullptr);
  rig.replay->release(nullptr);
  EXPECT_EQ(rig.pool->allocations, 0);
}

TEST(Replay, GivesNullWhenThePoolHasNoMore) {
  Rig rig;
  rig.pool->fail_after = 0;
  EXPECT_EQ(rig.replay->allocate(10), nullptr);
  rig.pool->fail_after = -1;
  void* memory = rig.replay->allocate(10);
  EXPECT_NE(memory, nullptr);
  rig.replay->release(memory);
}

TEST(Replay, RunsFromThePoolWhenTheArenaCannotBeHadAndSaysSo) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  chain(*rig.replay);
  rig.replay->end_run();
  rig.arena->fail_after = 0;
  const Result<void> refused = rig.replay->begin_run("k");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  const Chain run = chain(*rig.replay);
  EXPECT_TRUE(rig.pool->touched(run.a));
  rig.replay->end_run();
  rig.arena->fail_after = -1;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  EXPECT_TRUE(rig.in_arena(chain(*rig.replay).a));
  rig.replay->end_run();
}

TEST(Replay, HandsOnWhatThePlannerSaysAndRecordsAgain) {
  Rig rig({.planner = [](const PlanProblem&) -> Result<MemoryPlan> {
    return Error(Code::kInfeasible, Layer::kPlan, "no");
  }});
  ASSERT_TRUE(rig.replay->begin_run("k"));
  chain(*rig.replay);
  rig.replay->end_run();
  const Result<void> refused = rig.replay->begin_run("k");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInfeasible);
  EXPECT_TRUE(rig.pool->touched(chain(*rig.replay).a));
  EXPECT_TRUE(rig.replay->end_run().recorded);
}

TEST(Replay, RefusesAPlanThatOverlaps) {
  Rig rig({.planner = [](const PlanProblem& problem) {
    Result<MemoryPlan> plan = first_fit(problem);
    for (Slot& slot : plan->slots) slot.offset = 0;
    return plan;
  }});
  ASSERT_TRUE(rig.replay->begin_run("k"));
  chain(*rig.replay);
  rig.replay->end_run();
  const Result<void> refused = rig.replay->plan_recorded();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidData);
  EXPECT_EQ(rig.replay->plan("k"), nullptr);
}

TEST(ReplayDeathTest, StopsOnMemoryThatIsNotItsOwn) {
  Rig rig;
  int mine = 0;
  EXPECT_DEATH(rig.replay->release(&mine), "was not allocated here");
}

TEST(Replay, SavesPlansAndNeedsNoRecordingAfterLoadingThem) {
  std::string saved;
  {
    Rig rig;
    ASSERT_TRUE(rig.replay->begin_run("k"));
    chain(*rig.replay);
    rig.replay->end_run();
    ASSERT_TRUE(rig.replay->plan_recorded());
    saved = rig.replay->save_plans("model 1");
  }
  Rig rig({.planner = [](const PlanProblem&) -> Result<MemoryPlan> {
    ADD_FAILURE() << "a saved plan needs no planner";
    return Error(Code::kInfeasible, Layer::kPlan, "no");
  }});
  ASSERT_TRUE(rig.replay->load_plans(saved, "model 1"));
  ASSERT_TRUE(rig.replay->begin_run("k"));
  EXPECT_TRUE(rig.in_arena(chain(*rig.replay).a));
  EXPECT_FALSE(rig.replay->end_run().recorded);
  EXPECT_EQ(rig.replay->save_plans("model 1"), saved);
}

TEST(Replay, RefusesSavedPlansOfAnotherModelAndDamagedOnes) {
  Rig rig;
  ASSERT_TRUE(rig.replay->begin_run("k"));
  chain(*rig.replay);
  rig.replay->end_run();
  ASSERT_TRUE(rig.replay->plan_recorded());
  const std::string saved = rig.replay->save_plans("model 1");

  Rig other;
  EXPECT_EQ(other.replay->load_plans(saved, "model 2").error().code(), Code::kNotFound);
  EXPECT_EQ(other.replay->load_plans("", "model 1").error().code(), Code::kInvalidData);
  for (std::size_t length = 0; length < saved.size(); ++length)
    EXPECT_EQ(other.replay->load_plans(saved.substr(0, length), "model 1").error().code(), Code::kInvalidData);
  for (std::size_t at = 0; at < saved.size(); ++at) {
    std::string damaged = saved;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_FALSE(other.replay->load_plans(damaged, "model 1")) << "byte " << at;
  }
  EXPECT_EQ(other.replay->plan("k"), nullptr);
}

// Replays random traces with random deviations and checks every answer against a model of what is live.
class ReplayModel {
 public:
  ReplayModel(Rig& rig, std::mt19937& random) : rig_(rig), random_(random) {}

  void allocate(std::size_t bytes) {
    auto* memory = static_cast<unsigned char*>(rig_.replay->allocate(bytes));
    ASSERT_NE(memory, nullptr);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u);
    const auto after = live_.upper_bound(memory);
    if (after != live_.end()) {
      ASSERT_LE(memory + bytes, after->first) << "overlaps live memory";
    }
    if (after != live_.begin()) {
      const auto before = std::prev(after);
      ASSERT_LE(before->first + before->second.bytes, memory) << "overlaps live memory";
    }
    const auto mark = static_cast<unsigned char>(random_());
    std::memset(memory, mark, bytes);
    live_[memory] = {bytes, mark};
    order_.push_back(memory);
  }
  void release(std::size_t index) {
    unsigned char* memory = order_[index];
    const Live& live = live_.at(memory);
    for (std::size_t i = 0; i < live.bytes; ++i) ASSERT_EQ(memory[i], live.mark) << "live bytes were overwritten";
    rig_.replay->release(memory);
    live_.erase(memory);
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  std::size_t size() const { return order_.size(); }

 private:
  struct Live {
    std::size_t bytes;
    unsigned char mark;
  };
  Rig& rig_;
  std::mt19937& random_;
  std::map<unsigned char*, Live> live_;
  std::vector<unsigned char*> order_;
};

// The script of a run: a positive number asks for that many bytes, a negative one releases the (-n)-th oldest.
std::vector<int> random_script(std::mt19937& random, std::size_t length) {
  std::vector<int> script;
  int live = 0;
  for (std::size_t i = 0; i < length; ++i) {
    if (live > 0 && random() % 5 < 2) {
      script.push_back(-static_cast<int>(random() % static_cast<unsigned>(live)) - 1);
      --live;
    } else {
      script.push_back(static_cast<int>(1 + random() % 8) * 100);
      ++live;
    }
  }
  return script;
}

TEST(Replay, NeverOverlapsLiveMemoryWhateverTheEngineDoes) {
  for (const unsigned seed : test::seeds(60)) {
    std::mt19937 random(seed);
    Rig rig({.renew_after = seed % 4});
    ReplayModel model(rig, random);
    std::vector<std::vector<int>> scripts;
    for (int i = 0; i < 3; ++i) scripts.push_back(random_script(random, 10 + random() % 60));
    for (int run = 0; run < 24; ++run) {
      const std::size_t which = random() % scripts.size();
      ASSERT_TRUE(rig.replay->begin_run(std::to_string(which)));
      std::vector<int> script = scripts[which];
      const unsigned mischief = random() % 4;  // 0: none
      if (mischief == 1 && script.size() > 2)
        std::swap(script[random() % script.size()], script[random() % script.size()]);
      if (mischief == 2) script.insert(script.begin() + static_cast<int>(random() % script.size()), 777);
      if (mischief == 3) script.resize(random() % script.size());
      for (const int step : script) {
        if (step > 0)
          model.allocate(static_cast<std::size_t>(step));
        else if (model.size() >= static_cast<std::size_t>(-step))
          model.release(static_cast<std::size_t>(-step) - 1);
        if (HasFatalFailure()) return;
      }
      rig.replay->end_run();
      // Some outputs are released between the runs, some are kept.
      while (model.size() > 0 && random() % 8 != 0) model.release(random() % model.size());
      if (HasFatalFailure()) return;
    }
    while (model.size() > 0) model.release(0);
    EXPECT_EQ(rig.replay->counters().pool_bytes, 0u);
    EXPECT_GT(rig.replay->counters().planned, 0u);
  }
}

TEST(Replay, ServesSeveralThreadsOfOneRunWithoutOverlap) {
  Rig rig;
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 200; ++i) {
      const std::size_t bytes = 64 * (1 + random() % 16);
      auto* memory = static_cast<unsigned char*>(rig.replay->allocate(bytes));
      std::memset(memory, static_cast<int>(seed), bytes);
      if (random() % 4 == 0) std::this_thread::yield();
      for (std::size_t b = 0; b < bytes; ++b)
        if (memory[b] != seed) return false;
      rig.replay->release(memory);
    }
    return true;
  };
  for (int run = 0; run < 8; ++run) {
    ASSERT_TRUE(rig.replay->begin_run("k"));
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (unsigned t = 1; t <= 4; ++t) threads.emplace_back([&, t] { good += work(t) ? 1 : 0; });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(good, 4);
    EXPECT_EQ(rig.replay->end_run().requests, 800u);
  }
}

TEST(ReplayTrace, CountsTheLivePeakOfWhatWasAskedFor) {
  ReplayTrace trace;
  trace.requests = {{.bytes = 100, .released_at = 2}, {.bytes = 50}, {.bytes = 70, .released_at = 3}, {.bytes = 10}};
  trace.releases = {0, 2};
  EXPECT_EQ(trace.live_peak(), 150u);
}

TEST(ReplayTrace, BecomesAPlanningProblemWithHalfOpenLifetimes) {
  ReplayTrace trace;
  trace.requests = {{.bytes = 100, .alignment = 64, .released_at = 2},
                    {.bytes = 50, .alignment = 64},
                    {.bytes = 70, .alignment = 64, .kept = true},
                    {.bytes = 20, .alignment = 16}};
  trace.releases = {0};
  const PlanProblem problem = plan_problem(trace);
  ASSERT_EQ(problem.lifetimes.size(), 4u);
  EXPECT_EQ(problem.lifetimes[0].bytes, 128u) << "whole multiples of the alignment";
  EXPECT_EQ(problem.lifetimes[0].first, 0);
  EXPECT_EQ(problem.lifetimes[0].last, 2);
  EXPECT_EQ(problem.lifetimes[1].last, 4);
  EXPECT_EQ(problem.lifetimes[1].alignment, 64u);
  EXPECT_EQ(problem.lifetimes[2].bytes, 0u) << "kept requests have no slot";
  EXPECT_EQ(problem.lifetimes[3].bytes, 20u) << "others fit into the rest of a small one's line";
}

}  // namespace
}  // namespace berth
