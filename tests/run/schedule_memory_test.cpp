// From a schedule to lifetimes, to a plan, to an arena, and back to a schedule that runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <atomic>
#include <latch>
#include <random>

#include "berth/memory/registry.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"
#include "support/seed.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Levels = std::pair<std::int64_t, std::int64_t>;

std::vector<Levels> levels_of(const std::vector<Lifetime>& lifetimes) {
  std::vector<Levels> levels;
  for (const Lifetime& lifetime : lifetimes) levels.push_back({lifetime.first, lifetime.last});
  return levels;
}

Arena arena_for(const std::vector<Lifetime>& lifetimes) {
  return Arena::from_plan(device("CPU").value(), plan({.lifetimes = lifetimes, .alignment = 64}).value()).value();
}

TEST(ScheduleMemory, CountsLifetimesInLevels) {
  ScheduleBuilder builder;
  const Node input = builder.add_node({.bytes = 64}), a = builder.add_node({.bytes = 64}),
             b = builder.add_node({.bytes = 64}), result = builder.add_node({.bytes = 64}, NodeRole::kOutput),
             unused = builder.add_node({.bytes = 64, .label = "unused"});
  builder.add_step({.writes = {a}});
  builder.add_step({.reads = {a}, .writes = {result}});
  builder.add_step({.reads = {input, result}, .writes = {b}});
  builder.add_step({.reads = {b}});
  const std::vector<Lifetime> lifetimes = lifetimes_from_schedule(builder.build().value());
  EXPECT_THAT(levels_of(lifetimes), ElementsAre(Levels{0, 3}, Levels{0, 2}, Levels{2, 4}, Levels{1, 4}, Levels{0, 1}))
      << "the input is there before level 0, the output stays until the end";
  EXPECT_EQ(lifetimes[unused.id].label, "unused") << "all else of a node is kept";
}

TEST(ScheduleMemory, SeesThroughWindowsWhoReadsAndWrites) {
  ScheduleBuilder builder;
  const Node whole = builder.add_node({.bytes = 64});
  const Node low = builder.add_node({.bytes = 32, .alias = AliasOf{.node = whole.id}});
  const Node high = builder.add_node({.bytes = 32, .alias = AliasOf{.node = whole.id, .offset = 32}});
  const Node last = builder.add_node({.bytes = 16, .alias = AliasOf{.node = high.id, .offset = 16}});
  builder.add_step({.writes = {low}});
  builder.add_step({.writes = {high}});
  const StepId reads_last = builder.add_step({.reads = {last}});
  const StepId reads_all = builder.add_step({.reads = {whole}});
  const Schedule schedule = builder.build().value();
  EXPECT_EQ(schedule.level_of(1), 0u) << "two halves are filled at the same time";
  EXPECT_THAT(schedule.dependencies_of(reads_last), ElementsAre(1u));
  EXPECT_THAT(schedule.dependencies_of(reads_all), ElementsAre(0u, 1u));
  EXPECT_THAT(levels_of(lifetimes_from_schedule(schedule)),
              ElementsAre(Levels{1, 2}, Levels{0, 1}, Levels{0, 1}, Levels{1, 2}))
      << "none is an input: both halves were written";
}

TEST(ScheduleMemory, KeepsReuseInPlaceOnlyForTheStepThatIsAlone) {
  const auto permitted = [](int readers, int writers) {
    ScheduleBuilder builder;
    const Node a = builder.add_node({.bytes = 64});
    const Node b = builder.add_node({.bytes = 64, .reuse_in_place = a.id});
    const Node half = builder.add_node({.bytes = 32, .alias = AliasOf{.node = b.id, .offset = 32}});
    const Node other = builder.add_node({.bytes = 32, .alias = AliasOf{.node = b.id}});
    builder.add_step({.writes = {a}});
    if (writers == 1) {
      builder.add_step({.reads = {a}, .writes = {b}});
    } else {
      builder.add_step({.reads = {a}, .writes = {half}});
      builder.add_step({.reads = {}, .writes = {other}, .after = {0}});
    }
    if (readers == 2) builder.add_step({.reads = {a}});
    builder.add_step({.reads = {b}});
    return lifetimes_from_schedule(builder.build().value())[b.id].reuse_in_place.has_value();
  };
  EXPECT_TRUE(permitted(1, 1));
  EXPECT_FALSE(permitted(2, 1)) << "another step of the level still reads the old value";
  EXPECT_FALSE(permitted(1, 2)) << "another step of the level already writes the new one";
}

// The order in which steps were added says nothing about when they run: step 1 reads `early` and was added second,
// yet it waits for the last. Lifetimes counted in that order would let `late` take over the bytes of `early`.
struct EarlyReaderThatRunsLate {
  ScheduleBuilder builder;
  Node early = builder.add_node({.bytes = 4096, .label = "early"});
  Node seen = builder.add_node({.bytes = 4096, .label = "seen"}, NodeRole::kOutput);
  Node late = builder.add_node({.bytes = 4096, .label = "late"});
  Node end = builder.add_node({.bytes = 4096, .label = "end"});

  static Result<void> fill(const Buffer& buffer, float value) {
    for (float& x : buffer.as_slice_mut<float>().value()) x = value;
    return {};
  }

  Schedule build() {
    builder.add_step({.writes = {early}, .run = [this](const StepRun& run) { return fill(run.node(early), 1); }});
    builder.add_step(
        {.label = "early reader", .reads = {early}, .writes = {seen}, .after = {3}, .run = [this](const StepRun& run) {
           return run.node(seen).copy_from(run.node(early));
         }});
    builder.add_step({.writes = {late}, .run = [this](const StepRun& run) { return fill(run.node(late), 2); }});
    builder.add_step(
        {.reads = {late}, .writes = {end}, .run = [this](const StepRun& run) { return fill(run.node(end), 3); }});
    return builder.build().value();
  }
};

TEST(ScheduleMemory, NeverOverwritesTheInputOfAnEarlyReaderThatRunsLate) {
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  EarlyReaderThatRunsLate work;
  const Schedule schedule = work.build();
  const std::vector<Lifetime> lifetimes = lifetimes_from_schedule(schedule);
  EXPECT_GE(lifetimes[work.early.id].last, lifetimes[work.end.id].last) << "it is read after everything else";
  const Arena arena = arena_for(lifetimes);
  const Schedule bound = schedule.bind(arena).value();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(bound.run({.workers = 4, .check_overlaps = i % 2 == 0}));
    for (const float x : arena.buffer(work.seen.id).value().as_slice<float>().value()) ASSERT_EQ(x, 1.0f);
  }
}

TEST(ScheduleMemory, RefusesAPlanThatWasMadeForAGuessedOrder) {
  EarlyReaderThatRunsLate work;
  const Schedule schedule = work.build();
  std::vector<Lifetime> guessed = lifetimes_from_schedule(schedule);
  // As if each step ran in the order it was added.
  guessed[work.early.id].first = 0, guessed[work.early.id].last = 2;
  guessed[work.seen.id].first = 1, guessed[work.seen.id].last = 4;
  guessed[work.late.id].first = 2, guessed[work.late.id].last = 4;
  guessed[work.end.id].first = 3, guessed[work.end.id].last = 4;
  const Arena arena = arena_for(guessed);
  const auto refused = schedule.bind(arena);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("\"early\" is overwritten by another node before step 1 \"early reader\" reads it"));
}

TEST(ScheduleMemory, RefusesAPlanThatOverwritesAnOutput) {
  ScheduleBuilder builder;
  const Node out = builder.add_node({.bytes = 64}, NodeRole::kOutput);
  const Node other = builder.add_node({.bytes = 64});
  builder.add_step({.writes = {out}});
  builder.add_step({.writes = {other}, .after = {0}});
  const Schedule schedule = builder.build().value();
  std::vector<Lifetime> lifetimes = lifetimes_from_schedule(schedule);
  EXPECT_TRUE(schedule.bind(arena_for(lifetimes)));
  lifetimes[out.id].last = 1;
  const auto refused = schedule.bind(arena_for(lifetimes));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("before the end of the run"));
}

TEST(ScheduleMemory, RefusesAnArenaThatLacksANodeOrHasItSmaller) {
  ScheduleBuilder builder;
  const Node a = builder.add_node({.bytes = 64}), b = builder.add_node({.bytes = 64}),
             none = builder.add_node({.bytes = 0});
  builder.add_step({.reads = {none}, .writes = {a, b}});
  const Schedule schedule = builder.build().value();
  std::vector<Lifetime> lifetimes = lifetimes_from_schedule(schedule);
  EXPECT_TRUE(schedule.bind(arena_for(lifetimes))) << "a node of zero bytes needs no slot";
  lifetimes[1].bytes = 32;
  EXPECT_EQ(schedule.bind(arena_for(lifetimes)).error().code(), Code::kInvalidArgument);
  lifetimes.resize(1);
  EXPECT_EQ(schedule.bind(arena_for(lifetimes)).error().code(), Code::kNotFound);
}

TEST(ScheduleMemory, HoldsAWriterBackWhileASlowReaderOfTheSameBytesRuns) {
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  // `old` dies at level 1 and `young` begins at level 2, in the same bytes. Nothing but the bytes keeps the chain
  // a -> b -> young from running past the slow reader of `old`.
  ScheduleBuilder builder;
  const Node old = builder.add_node({.bytes = 256}), young = builder.add_node({.bytes = 256});
  const Buffer chain = Buffer::allocate(device("CPU").value(), u8, {1}).value();
  std::atomic<bool> reading{false}, overtaken{false};
  std::latch reader_in(1);
  builder.add_step({.writes = {old}});
  builder.add_step({.label = "slow reader", .reads = {old}, .run = [&](const StepRun&) -> Result<void> {
                      reading = true;
                      reader_in.count_down();
                      for (int i = 0; i < 200; ++i) std::this_thread::yield();
                      reading = false;
                      return {};
                    }});
  builder.add_step({.writes = {chain}});
  builder.add_step({.writes = {chain}, .run = [&](const StepRun&) -> Result<void> {
                      reader_in.wait();
                      return {};
                    }});
  builder.add_step({.reads = {chain}, .writes = {young}, .run = [&](const StepRun&) -> Result<void> {
                      overtaken = reading.load();
                      return {};
                    }});
  const Schedule schedule = builder.build().value();
  const Arena arena = arena_for(lifetimes_from_schedule(schedule));
  ASSERT_EQ(arena.offset(old.id).value(), arena.offset(young.id).value());
  const Schedule bound = schedule.bind(arena).value();
  EXPECT_THAT(bound.dependencies_of(4), ::testing::Contains(1u));
  ASSERT_TRUE(bound.run({.workers = 2}));
  EXPECT_FALSE(overtaken);
}

TEST(ScheduleMemory, GivesRandomGraphsTheSameNumbersInOneArenaAsInBuffersOfTheirOwn) {
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  for (const unsigned seed : test::seeds(20)) {
    std::mt19937 random(seed);
    const std::size_t count = 60;
    std::vector<std::vector<std::size_t>> inputs(count);
    for (std::size_t i = 1; i < count; ++i)
      for (std::size_t k = random() % 3 + 1; k-- > 0;)
        inputs[i].push_back(i - 1 - random() % std::min<std::size_t>(i, 12));
    const auto mix = [](float sum, float x) { return sum * 0.5f + x; };

    std::vector<float> expected(count);
    ScheduleBuilder builder;
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < count; ++i) {
      expected[i] = static_cast<float>(i);
      for (const std::size_t input : inputs[i]) expected[i] = mix(expected[i], expected[input]);
      nodes.push_back(builder.add_node({.bytes = 64 * (1 + random() % 8)},
                                       random() % 8 == 0 ? NodeRole::kOutput : NodeRole::kTemporary));
    }
    std::vector<std::atomic<float>> seen(count);
    for (std::size_t i = 0; i < count; ++i) {
      Step step{.writes = {nodes[i]}};
      for (const std::size_t input : inputs[i]) step.reads.push_back(nodes[input]);
      step.run = [&, i](const StepRun& run) -> Result<void> {
        float value = static_cast<float>(i);
        for (const std::size_t input : inputs[i]) {
          const auto floats = run.node(nodes[input]).as_slice<float>().value();
          value = mix(value, floats[floats.size() - 1]);
        }
        for (float& x : run.node(nodes[i]).as_slice_mut<float>().value()) x = value;
        seen[i] = value;
        return {};
      };
      builder.add_step(std::move(step));
    }
    const Schedule schedule = builder.build().value();
    const Arena arena = arena_for(lifetimes_from_schedule(schedule));
    const Schedule bound = schedule.bind(arena).value();
    EXPECT_EQ(bound.level_count(), schedule.level_count()) << "taking turns in bytes costs no level";
    ASSERT_TRUE(bound.run({.workers = 4}));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(seen[i].load(), expected[i]) << "seed " << seed << " step " << i;
  }
}

}  // namespace
}  // namespace berth
