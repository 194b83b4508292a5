#include "berth/run/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include <atomic>
#include <latch>
#include <random>
#include <thread>

#include "base/thread_handoff.h"
#include "berth/memory/registry.h"
#include "berth/run/arena.h"
#include "support/seed.h"

namespace berth {

using namespace internal;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Buffer make_buffer(std::size_t bytes) {
  return Buffer::allocate(device("CPU").value(), u8, {bytes}).value();
}

Buffer part(const Buffer& buffer, std::size_t offset, std::size_t bytes) {
  return buffer.view(offset, bytes).value();
}

// So that two workers are two threads also on a machine with one core.
class ScheduleLanes : public ::testing::Test {
 protected:
  tbb::global_control threads_{tbb::global_control::max_allowed_parallelism, 4};
};

TEST(Schedule, OrdersStepsThatConflictAndCountsLevels) {
  const Buffer a = make_buffer(64), b = make_buffer(64);
  ScheduleBuilder builder;
  const StepId fill_a = builder.add_step({.label = "fill a", .writes = {a}});
  const StepId fill_b = builder.add_step({.label = "fill b", .writes = {b}});
  const StepId sum = builder.add_step({.label = "sum", .reads = {a, part(b, 0, 8)}});
  const StepId late = builder.add_step({.label = "late", .writes = {part(a, 32, 8)}});
  const Schedule schedule = builder.build().value();
  EXPECT_EQ(schedule.step_count(), 4u);
  EXPECT_EQ(schedule.level_count(), 3u);
  EXPECT_EQ(schedule.level_of(fill_b), 0u);
  EXPECT_EQ(schedule.level_of(late), 2u);
  EXPECT_EQ(schedule.label_of(sum), "sum");
  EXPECT_THAT(schedule.steps_of(0), ElementsAre(fill_a, fill_b));
  EXPECT_THAT(schedule.dependencies_of(sum), ElementsAre(fill_a, fill_b));
  EXPECT_THAT(schedule.dependencies_of(late), ElementsAre(sum));
}

TEST(Schedule, ListsADependencyOnceThoughItHasSeveralReasons) {
  const Buffer shared = make_buffer(64), other = make_buffer(64);
  ScheduleBuilder builder;
  const StepId first = builder.add_step({.reads = {shared}, .writes = {other}});
  const StepId second = builder.add_step({.reads = {shared}});
  const StepId half = builder.add_step({.writes = {part(shared, 0, 32)}});
  // After the two readers, whom `half` has made one for both halves, and after the first of them for its result.
  const StepId both = builder.add_step({.reads = {other}, .writes = {part(shared, 32, 32)}});
  const Schedule schedule = builder.build().value();
  EXPECT_THAT(schedule.dependencies_of(half), ElementsAre(first, second));
  EXPECT_THAT(schedule.dependencies_of(both), ElementsAre(first, second));
}

TEST(Schedule, ListsADependencyOnceThoughSeveralJoinsLeadToIt) {
  const Buffer x = make_buffer(64), y = make_buffer(64);
  ScheduleBuilder builder;
  std::vector<StepId> writers, readers;
  for (std::size_t i = 0; i < 8; ++i)
    writers.push_back(builder.add_step({.writes = {part(x, i * 8, 8), part(y, i * 8, 8)}}));
  for (int i = 0; i < 8; ++i) readers.push_back(builder.add_step({.reads = {x, y}}));
  const Schedule schedule = builder.build().value();
  for (const StepId reader : readers) EXPECT_EQ(schedule.dependencies_of(reader), writers);
}

TEST(Schedule, KeepsDisjointViewsOfOneStorageOnOneLevel) {
  const Buffer whole = make_buffer(64);
  ScheduleBuilder builder;
  for (std::size_t i = 0; i < 8; ++i) builder.add_step({.writes = {part(whole, i * 8, 8)}});
  const Schedule schedule = builder.build().value();
  EXPECT_EQ(schedule.level_count(), 1u);
  EXPECT_EQ(schedule.edge_count(), 0u);
}

TEST(Schedule, TakesNodesOfAnArenaAsBytesOfIt) {
  const MemoryPlan plan =
      berth::plan({{.bytes = 64, .first = 0, .last = 1}, {.bytes = 64, .first = 1, .last = 2}}).value();
  ASSERT_EQ(plan.size, 64u) << "the two take turns in the same bytes";
  const Arena arena = Arena::from_plan(device("CPU").value(), plan).value();
  ScheduleBuilder builder;
  builder.add_step({.writes = {{arena, 0}}});
  const StepId second = builder.add_step({.writes = {{arena, 1}}});
  EXPECT_THAT(builder.build().value().dependencies_of(second), ElementsAre(0u));
}

TEST(Schedule, KeepsTheMemoryOfItsStepsAlive) {
  ScheduleBuilder builder;
  {
    const Buffer buffer = make_buffer(1024);
    builder.add_step({.writes = {buffer}, .run = [raw = buffer.as_raw_ptr()](const StepRun&) -> Result<void> {
                        static_cast<char*>(raw)[1023] = 1;
                        return {};
                      }});
  }
  EXPECT_TRUE(builder.build().value().run());
}

TEST(Schedule, RefusesWhatIsNotThere) {
  const auto refusal = [](Step step) {
    ScheduleBuilder builder;
    builder.add_step(std::move(step));
    auto built = builder.build();
    EXPECT_FALSE(built);
    return built ? Error(Code::kIo, Layer::kSchedule, "built") : built.error();
  };
  const Error dependency = refusal({.after = {5}});
  EXPECT_EQ(dependency.code(), Code::kNotFound);
  EXPECT_THAT(dependency.message(), HasSubstr("step 0 waits for step 5, and there are 1 steps"));
  EXPECT_EQ(refusal({.reads = {Node{3}}}).code(), Code::kNotFound);
  EXPECT_EQ(refusal({.reads = {Buffer()}}).code(), Code::kInvalidArgument);
  const Arena arena =
      Arena::from_plan(device("CPU").value(), berth::plan({{.bytes = 8, .first = 0, .last = 1}}).value()).value();
  EXPECT_EQ(refusal({.writes = {{arena, 9}}}).code(), Code::kNotFound);

  ScheduleBuilder early;
  early.add_node({.bytes = 8, .alias = AliasOf{.node = 0}});
  EXPECT_EQ(early.build().error().code(), Code::kNotFound);
  ScheduleBuilder outside;
  outside.add_node({.bytes = 8});
  outside.add_node({.bytes = 8, .alias = AliasOf{.node = 0, .offset = 1}});
  EXPECT_EQ(outside.build().error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(outside.build()) << "a builder is empty after build()";
}

TEST(Schedule, RefusesStepsThatWaitForEachOtherAndNamesThem) {
  const Buffer buffer = make_buffer(8);
  ScheduleBuilder builder;
  builder.add_step({.label = "apart"});
  builder.add_step({.label = "write", .writes = {buffer}, .after = {2}});
  builder.add_step({.label = "read", .reads = {buffer}});
  const auto built = builder.build();
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().code(), Code::kCycle);
  EXPECT_THAT(built.error().message(), HasSubstr("step 1 \"write\""));
  EXPECT_THAT(built.error().message(), HasSubstr("step 2 \"read\""));
  EXPECT_THAT(built.error().message(), Not(HasSubstr("apart")));

  ScheduleBuilder own;
  own.add_step({.after = {0}});
  EXPECT_EQ(own.build().error().code(), Code::kCycle);

  ScheduleBuilder ring;
  for (StepId i = 0; i < 20; ++i) ring.add_step({.after = {(i + 1) % 20}});
  EXPECT_THAT(ring.build().error().message(), HasSubstr("... (20 steps)"));
}

TEST(Schedule, WaitsForAStepThatIsAddedLater) {
  ScheduleBuilder builder;
  std::vector<StepId> order;
  const auto note = [&](const StepRun& run) -> Result<void> {
    order.push_back(run.step);
    return {};
  };
  builder.add_step({.after = {1}, .run = note});
  builder.add_step({.run = note});
  ASSERT_TRUE(builder.build().value().run());
  EXPECT_THAT(order, ElementsAre(1u, 0u));
}

TEST(Schedule, RunsNothingWhenThereIsNothing) {
  const Schedule schedule = ScheduleBuilder().build().value();
  EXPECT_TRUE(schedule.run());
  EXPECT_EQ(schedule.level_count(), 0u);
}

TEST(Schedule, RunsOneLaneOnTheCallingThread) {
  ScheduleBuilder builder;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 5; ++i)
    builder.add_step({.run = [&](const StepRun& run) -> Result<void> {
      threads.push_back(std::this_thread::get_id());
      EXPECT_EQ(run.worker, 0u);
      return {};
    }});
  ASSERT_TRUE(builder.build().value().run({.workers = 1}));
  EXPECT_EQ(threads, std::vector<std::thread::id>(5, std::this_thread::get_id()));
}

TEST_F(ScheduleLanes, RunsIndependentStepsAtTheSameTimeInDifferentLanes) {
  ScheduleBuilder builder;
  std::latch both(2);
  std::array<std::uint32_t, 2> workers{};
  for (int i = 0; i < 2; ++i)
    builder.add_step({.run = [&](const StepRun& run) -> Result<void> {
      both.arrive_and_wait();  // returns only if the other step is running too
      workers[run.step] = run.worker;
      return {};
    }});
  ASSERT_TRUE(builder.build().value().run({.workers = 2}));
  EXPECT_NE(workers[0], workers[1]);
}

// Each step adds the parts it reads to the parts it writes: any wrong order changes the numbers.
struct RandomWork {
  static constexpr std::size_t kBytes = 256;
  struct Range {
    std::size_t begin, end;
  };
  struct Spec {
    std::vector<Range> reads, writes;
  };
  std::vector<Spec> specs;

  RandomWork(unsigned seed, std::size_t count) {
    std::mt19937 random(seed);
    const auto range = [&] {
      const std::size_t begin = random() % kBytes;
      return Range{begin, begin + 1 + random() % std::min<std::size_t>(40, kBytes - begin)};
    };
    for (std::size_t i = 0; i < count; ++i) {
      Spec spec;
      for (std::size_t r = random() % 3; r-- > 0;) spec.reads.push_back(range());
      for (std::size_t w = random() % 2 + 1; w-- > 0;) spec.writes.push_back(range());
      specs.push_back(spec);
    }
  }
  static void work(const Spec& spec, std::size_t step, std::uint8_t* bytes) {
    std::uint8_t sum = static_cast<std::uint8_t>(step + 1);
    for (const Range& range : spec.reads)
      for (std::size_t i = range.begin; i < range.end; ++i) sum = static_cast<std::uint8_t>(sum * 31 + bytes[i]);
    for (const Range& range : spec.writes)
      for (std::size_t i = range.begin; i < range.end; ++i) bytes[i] = static_cast<std::uint8_t>(bytes[i] * 3 + sum++);
  }
};

TEST_F(ScheduleLanes, GivesTheResultOfTheSerialOrderOnRandomSteps) {
  for (const unsigned seed : test::seeds(40)) {
    const RandomWork random(seed, 200);
    std::vector<std::uint8_t> expected(RandomWork::kBytes, 0);
    for (int round = 0; round < 3; ++round)
      for (std::size_t i = 0; i < random.specs.size(); ++i) RandomWork::work(random.specs[i], i, expected.data());

    const Buffer memory = Buffer::allocate(device("CPU").value(), u8, {RandomWork::kBytes}, {.zero = true}).value();
    auto* bytes = static_cast<std::uint8_t*>(memory.as_raw_ptr());
    ScheduleBuilder builder;
    std::array<std::atomic<int>, 4> running_on{};
    for (const RandomWork::Spec& spec : random.specs) {
      Step step;
      for (const auto& range : spec.reads) step.reads.push_back(part(memory, range.begin, range.end - range.begin));
      for (const auto& range : spec.writes) step.writes.push_back(part(memory, range.begin, range.end - range.begin));
      step.run = [&spec, &running_on, bytes](const StepRun& run) -> Result<void> {
        EXPECT_EQ(running_on[run.worker].fetch_add(1), 0) << "two steps in one worker";
        RandomWork::work(spec, run.step, bytes);
        running_on[run.worker].fetch_sub(1);
        return {};
      };
      builder.add_step(std::move(step));
    }
    const Schedule schedule = builder.build().value();
    for (const bool check : {true, false, false})
      ASSERT_TRUE(schedule.run({.workers = 4, .check_overlaps = check})) << "seed " << seed;
    ASSERT_EQ(std::vector<std::uint8_t>(bytes, bytes + RandomWork::kBytes), expected) << "seed " << seed;
  }
}

TEST_F(ScheduleLanes, RunsEachOfThousandsOfReadyStepsOnce) {
  ScheduleBuilder builder;
  std::vector<std::atomic<int>> runs(3000);
  for (std::size_t i = 0; i < runs.size(); ++i)
    builder.add_step({.run = [&](const StepRun& run) -> Result<void> {
      ++runs[run.step];
      return {};
    }});
  const Schedule schedule = builder.build().value();
  for (int round = 1; round <= 4; ++round) {
    ASSERT_TRUE(schedule.run({.workers = round % 2 == 0 ? 4u : 1u}));
    for (const auto& count : runs) ASSERT_EQ(count.load(), round);
  }
}

int handed_to_loop = 0, handed_back = 0;  // only their addresses are used

TEST_F(ScheduleLanes, RunsStepsThatAreParallelThemselves) {
  ScheduleBuilder builder;
  std::atomic<int> sum{0};
  for (int i = 0; i < 50; ++i)
    builder.add_step({.after = i < 5 ? std::vector<StepId>{} : std::vector<StepId>{static_cast<StepId>(i - 5)},
                      .run = [&](const StepRun&) -> Result<void> {
                        const auto count = [&](int) {
                          take_over(&handed_to_loop);
                          sum.fetch_add(1, std::memory_order_relaxed);
                          hand_over(&handed_back);
                        };
                        hand_over(&handed_to_loop);
                        tbb::parallel_for(0, 100, count);
                        take_over(&handed_back);
                        return {};
                      }});
  const Schedule schedule = builder.build().value();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(schedule.run({.workers = 4}));
  EXPECT_EQ(sum.load(), 20 * 50 * 100);
}

TEST_F(ScheduleLanes, RunsAScheduleInsideAStepOfAnother) {
  ScheduleBuilder inner_builder;
  std::atomic<int> count{0};
  for (int i = 0; i < 20; ++i)
    inner_builder.add_step({.run = [&](const StepRun&) -> Result<void> {
      ++count;
      return {};
    }});
  const Schedule inner = inner_builder.build().value();
  ScheduleBuilder builder;
  const Buffer token = make_buffer(1);
  for (int i = 0; i < 5; ++i)
    builder.add_step({.writes = {token}, .run = [&](const StepRun&) { return inner.run({.workers = 4}); }});
  for (int i = 0; i < 5; ++i) builder.add_step({});
  ASSERT_TRUE(builder.build().value().run({.workers = 4}));
  EXPECT_EQ(count.load(), 100);
}

Result<void> fail_with(Code code) {
  return Error(code, Layer::kBuffer, "no luck");
}

TEST_F(ScheduleLanes, SkipsWhatDependsOnAFailedStepAndRunsAllElse) {
  const Buffer a = make_buffer(8), b = make_buffer(8), c = make_buffer(8);
  ScheduleBuilder builder;
  bool fails = true;
  builder.add_step({.label = "good", .writes = {b}});
  builder.add_step({.label = "bad", .writes = {a}, .run = [&](const StepRun&) {
                      return fails ? fail_with(Code::kIo) : Result<void>();
                    }});
  builder.add_step({.label = "after bad", .reads = {a}, .writes = {c}});
  builder.add_step({.label = "after good", .reads = {b}});
  builder.add_step({.label = "after both", .reads = {b, c}});
  builder.add_step({.label = "bad too", .reads = {b}, .run = [&](const StepRun&) {
                      return fails ? fail_with(Code::kReadOnly) : Result<void>();
                    }});
  const Schedule schedule = builder.build().value();
  EXPECT_EQ(schedule.state_of(0), StepState::kNotRun);
  for (const std::uint32_t workers : {1u, 4u, 1u}) {
    fails = true;
    const auto failed = schedule.run({.workers = workers});
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), Code::kIo) << "the failed step with the lowest id speaks";
    EXPECT_EQ(failed.error().message(), "step 1 \"bad\": no luck");
    std::vector<StepState> states;
    for (StepId step = 0; step < 6; ++step) states.push_back(schedule.state_of(step));
    EXPECT_THAT(states, ElementsAre(StepState::kDone, StepState::kFailed, StepState::kSkipped, StepState::kDone,
                                    StepState::kSkipped, StepState::kFailed));
    fails = false;
    ASSERT_TRUE(schedule.run({.workers = workers})) << "a failed run leaves the schedule whole";
    EXPECT_EQ(schedule.state_of(4), StepState::kDone);
  }
}

TEST_F(ScheduleLanes, CarriesAFailureThroughJoins) {
  const Buffer whole = make_buffer(64);
  ScheduleBuilder builder;
  for (std::size_t i = 0; i < 8; ++i)
    builder.add_step({.writes = {part(whole, i * 8, 8)},
                      .run = [i](const StepRun&) { return i == 3 ? fail_with(Code::kIo) : Result<void>(); }});
  for (int i = 0; i < 8; ++i) builder.add_step({.reads = {whole}});
  builder.add_step({.reads = {part(whole, 0, 8)}});
  const Schedule schedule = builder.build().value();
  EXPECT_FALSE(schedule.run({.workers = 4}));
  for (StepId step = 8; step < 16; ++step) EXPECT_EQ(schedule.state_of(step), StepState::kSkipped);
  EXPECT_EQ(schedule.state_of(16), StepState::kDone);
}

TEST(Schedule, TurnsWhatAStepThrowsIntoAnError) {
  const auto run = [](StepFunction function) {
    ScheduleBuilder builder;
    builder.add_step({.label = "kernel", .run = std::move(function)});
    return builder.build().value().run().error();
  };
  const Error thrown = run([](const StepRun&) -> Result<void> { throw std::runtime_error("boom"); });
  EXPECT_EQ(thrown.code(), Code::kDriver);
  EXPECT_EQ(thrown.message(), "step 0 \"kernel\": it threw: boom");
  EXPECT_EQ(run([](const StepRun&) -> Result<void> { throw 42; }).code(), Code::kDriver);
  EXPECT_EQ(run([](const StepRun&) -> Result<void> { throw std::bad_alloc(); }).code(), Code::kOutOfMemory);
  EXPECT_EQ(run([](const StepRun&) -> Result<void> {
              fail_with(Code::kMisaligned).value();
              return {};
            }).code(),
            Code::kMisaligned);
}

TEST(Schedule, RefusesToRunWhileItRuns) {
  ScheduleBuilder builder;
  const Schedule* self = nullptr;
  builder.add_step({.run = [&](const StepRun&) { return self->run(); }});
  const Schedule schedule = builder.build().value();
  self = &schedule;
  const auto refused = schedule.run();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidUsage);
  EXPECT_THAT(refused.error().message(), HasSubstr("already running"));
}

TEST_F(ScheduleLanes, FindsRunningStepsThatConflictWhenAskedToCheck) {
  const Buffer buffer = make_buffer(64);
  ScheduleBuilder builder({.dependencies_from_bytes = false});
  std::latch refused(1), started(1);
  builder.add_step({.label = "first", .writes = {part(buffer, 0, 32)}, .run = [&](const StepRun&) -> Result<void> {
                      started.count_down();
                      refused.wait();
                      return {};
                    }});
  // Lets the second begin only once the first is inside.
  const StepId gate = builder.add_step({.run = [&](const StepRun&) -> Result<void> {
    started.wait();
    return {};
  }});
  builder.add_step({.label = "second", .reads = {part(buffer, 16, 32)}, .after = {gate}});
  // The worker that is left takes this after the second, which was refused, and lets the first go.
  builder.add_step({.label = "release", .after = {gate}, .run = [&](const StepRun&) -> Result<void> {
                      refused.count_down();
                      return {};
                    }});
  const Schedule schedule = builder.build().value();
  const auto found = schedule.run({.workers = 2, .check_overlaps = true});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), Code::kInvalidUsage);
  EXPECT_THAT(found.error().message(),
              HasSubstr("step 2 \"second\": step 0 \"first\" is running and uses bytes [0, 32)"));
  EXPECT_THAT(found.error().message(), HasSubstr("this uses [16, 48)"));
}

TEST(Schedule, RefusesToRunNodesWithoutMemory) {
  ScheduleBuilder builder;
  const Node node = builder.add_node({.bytes = 8});
  builder.add_step({.writes = {node}});
  EXPECT_EQ(builder.build().value().run().error().code(), Code::kNotAllocated);
}

}  // namespace
}  // namespace berth
