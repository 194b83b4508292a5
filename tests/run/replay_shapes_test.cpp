// Keys with dimensions: a Replay learns the requests of an engine as functions of its input's dimensions.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "berth/run/replay.h"
#include "support/replay_fixtures.h"
#include "support/seed.h"

namespace berth {
namespace {

using testing::FakeMemory;
using testing::first_fit;
using Dims = std::vector<std::int64_t>;

// An engine with a network: a list of layers whose output bytes are functions of the dimensions. Every layer's output
// lives until the next layer has run, some until much later.
struct Layer {
  std::function<std::uint64_t(const Dims&)> bytes;
  unsigned lives = 1;  // layers after which it is released
};
using Network = std::vector<Layer>;

Network image_network() {
  Network network;
  for (const std::int64_t stride : {1, 2, 2, 4, 8, 8, 4, 2, 1})
    network.push_back({[stride](const Dims& d) {
                         const auto down = [stride](std::int64_t x) { return (x + stride - 1) / stride; };
                         return static_cast<std::uint64_t>(4 * 3 * stride * down(d[2]) * down(d[3]) * d[0]);
                       },
                       static_cast<unsigned>(1 + stride % 3)});
  network.push_back({[](const Dims&) { return std::uint64_t{4096}; }, 2});
  return network;
}

// Past length in dimension 1, and again, with one more, in dimension 3.
Network decoder_network() {
  Network network;
  for (int layer = 0; layer < 12; ++layer) {
    network.push_back({[](const Dims& d) { return static_cast<std::uint64_t>(4 * 64 * (d[1] + 1)); }, 3});
    network.push_back({[](const Dims& d) { return static_cast<std::uint64_t>(4 * 8 * d[3]); }, 1});
    network.push_back({[](const Dims&) { return std::uint64_t{4'000'000}; }, 1});
  }
  return network;
}

class Engine {
 public:
  explicit Engine(Network network, ReplayOptions options = {})
      : network_(std::move(network)), arena(std::make_shared<FakeMemory>()), pool(std::make_shared<FakeMemory>()) {
    if (!options.planner) options.planner = first_fit;
    replay = std::make_unique<Replay>(arena, pool, options);
  }

  ReplayRun run(const Dims& dims) {
    EXPECT_TRUE(replay->begin_run("model", dims));
    struct Live {
      unsigned char* memory;
      std::uint64_t bytes;
      std::size_t until;
      unsigned char mark;
    };
    std::vector<Live> live;
    for (std::size_t i = 0; i < network_.size(); ++i) {
      const std::uint64_t bytes = network_[i].bytes(dims);
      auto* memory = static_cast<unsigned char*>(replay->allocate(bytes));
      memory[0] = memory[bytes - 1] = static_cast<unsigned char>(i + 1);
      live.push_back({memory, bytes, i + network_[i].lives, static_cast<unsigned char>(i + 1)});
      for (auto at = live.begin(); at != live.end();) {
        if (at->until > i && i + 1 != network_.size()) {
          ++at;
          continue;
        }
        EXPECT_EQ(at->memory[0], at->mark);
        EXPECT_EQ(at->memory[at->bytes - 1], at->mark) << "live bytes were overwritten";
        replay->release(at->memory);
        at = live.erase(at);
      }
    }
    return replay->end_run();
  }

 private:
  Network network_;

 public:
  std::shared_ptr<FakeMemory> arena, pool;
  std::unique_ptr<Replay> replay;
};

TEST(ReplayShapes, PlansAShapeThatItHasNeverSeen) {
  Engine engine(image_network());
  // Height and width in two directions, as people send them.
  for (const Dims& dims : std::vector<Dims>{{1, 3, 320, 320}, {1, 3, 640, 320}, {1, 3, 320, 640}})
    EXPECT_TRUE(engine.run(dims).recorded);
  const ReplayRun run = engine.run({1, 3, 480, 960});
  EXPECT_FALSE(run.recorded);
  EXPECT_TRUE(run.predicted);
  EXPECT_EQ(run.deviated, 0u);
  EXPECT_EQ(run.planned, run.requests);
  EXPECT_EQ(engine.replay->counters().recorded_runs, 3u);
  EXPECT_EQ(engine.replay->counters().predicted_runs, 1u);
}

TEST(ReplayShapes, RecordsNothingAfterTheSixthRunOfRandomShapes) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    Engine engine(image_network());
    std::uint64_t deviated_late = 0;
    for (int i = 0; i < 60; ++i) {
      const std::int64_t unit = seed % 2 == 0 ? 32 : 1;
      const auto extent = [&] { return unit * (1 + static_cast<std::int64_t>(random()) % (640 / unit)); };
      const Dims dims{1, 3, extent(), extent()};
      const ReplayRun run = engine.run(dims);
      if (i >= 6) {
        EXPECT_FALSE(run.recorded) << "run " << i << " of seed " << seed;
      }
      if (i >= 12) deviated_late += run.deviated;
    }
    EXPECT_EQ(deviated_late, 0u) << "seed " << seed;
  }
}

TEST(ReplayShapes, ADimensionThatNeverChangedIsNotGuessed) {
  Engine engine(image_network());
  for (const std::int64_t width : {320, 352, 416}) engine.run({1, 3, 320, width});
  EXPECT_TRUE(engine.run({1, 3, 320, 800}).predicted);
  EXPECT_TRUE(engine.run({2, 3, 320, 800}).recorded) << "no recording says what a batch of two needs";
}

TEST(ReplayShapes, PlansADecoderWhoseCacheGrowsAfterTheFirstSteps) {
  Engine engine(decoder_network());
  unsigned planned = 0;
  for (std::int64_t step = 1; step <= 200; ++step) {
    const ReplayRun run = engine.run({1, step, 1, step + 1});
    EXPECT_EQ(run.deviated, 0u) << "step " << step;
    planned += run.planned == run.requests ? 1 : 0;
  }
  EXPECT_GE(planned, 190u);
  const ReplayCounters counters = engine.replay->counters();
  EXPECT_LT(counters.predictions, 100u) << "a plan serves the next few steps as well";
  EXPECT_LE(counters.plans, ReplayOptions{}.max_plans);
}

// All of it grows with the past length.
Network growing_network() {
  Network network;
  for (int layer = 0; layer < 8; ++layer)
    network.push_back({[](const Dims& d) { return static_cast<std::uint64_t>(4 * 512 * (d[1] + 1)); }, 9});
  return network;
}

ReplayOptions with_pages(std::uint64_t* faulted) {
  ReplayOptions options;
  options.pages.fault_in = [faulted](const Block&, std::uint64_t, std::uint64_t bytes) { *faulted += bytes; };
  options.pages.give_back = [](const Block&, std::uint64_t, std::uint64_t) {};
  return options;
}

TEST(ReplayShapes, AnArenaThatGrowsStepByStepIsRarelyFaultedInAnew) {
  std::uint64_t faulted = 0;
  Engine engine(growing_network(), with_pages(&faulted));
  for (std::int64_t past = 64; past < 264; ++past) engine.run({1, past, 1, past + 1});
  EXPECT_GE(engine.replay->counters().predicted_runs, 190u);
  EXPECT_LE(engine.arena->allocations, 3);
  // Only what runs need is resident, whatever the block has addresses for.
  const std::uint64_t needed = std::uint64_t{8} * 4 * 512 * 264;
  EXPECT_GE(engine.replay->counters().arena_bytes, needed);
  EXPECT_LE(engine.replay->counters().arena_bytes, needed + needed / 32) << "a plan for the next few steps";
  EXPECT_LE(faulted, needed * 3 / 2);
}

TEST(ReplayShapes, APlanServesTheNextStepsOfWhatGrowsEvenly) {
  for (const std::int64_t step : {1, 3}) {
    Engine engine(growing_network());
    for (std::int64_t past = 256; past < 256 + 400 * step; past += step) {
      const ReplayRun run = engine.run({1, past, 1, past + 1});
      EXPECT_EQ(run.deviated, 0u);
      EXPECT_EQ(engine.replay->plan("model", Dims{1, past, 1, past + 1}) == nullptr, run.recorded) << past;
    }
    EXPECT_EQ(engine.replay->counters().predicted_runs, 397u);
    // 1/32 longer each time, with room for what is rounded down.
    EXPECT_LE(engine.replay->counters().predictions, step == 1 ? 40u : 70u) << step;
    // What was planned for the way is there for whoever comes along it again.
    const std::uint64_t before = engine.replay->counters().predictions;
    for (std::int64_t past = 256 + 5 * step; past < 256 + 400 * step; past += step)
      EXPECT_EQ(engine.run({1, past, 1, past + 1}).deviated, 0u);
    EXPECT_EQ(engine.replay->counters().predictions, before);
  }
}

TEST(ReplayShapes, SequencesThatGrowAtTheSameTimeHavePlansAhead) {
  Engine engine(growing_network());
  for (std::int64_t i = 0; i < 200; ++i)
    for (const std::int64_t past : {256, 1256, 2256, 3256})
      EXPECT_EQ(engine.run({1, past + i, 1, past + i + 1}).deviated, 0u);
  const ReplayCounters counters = engine.replay->counters();
  EXPECT_GE(counters.predicted_runs, 796u);
  EXPECT_LE(counters.predictions, 80u);
}

TEST(ReplayShapes, AStepThatIsNotOnItsWayCostsADeviationAndIsLearnedFrom) {
  std::int64_t odd = 0;
  Network network = growing_network();
  network.push_back({[&odd](const Dims& d) { return std::uint64_t{d[1] == odd ? 1u << 22 : 4096u}; }, 1});
  Engine engine(network);
  std::int64_t past = 256;
  const auto dims = [](std::int64_t n) { return Dims{1, n, 1, n + 1}; };
  for (; past < 400 || engine.replay->plan("model", dims(past + 2)) == nullptr; ++past) {
    ASSERT_LT(past, 500) << "no plan serves the steps ahead";
    EXPECT_EQ(engine.run(dims(past)).deviated, 0u) << past;
  }
  odd = past;
  EXPECT_EQ(engine.run(dims(odd)).deviated, 1u);
  EXPECT_EQ(engine.run(dims(odd + 1)).deviated, 0u) << "those beside it are as they were";
  EXPECT_EQ(engine.run(dims(odd)).deviated, 0u) << "the plan was made anew from what the run did";
  EXPECT_EQ(engine.run(dims(odd + 2)).deviated, 0u);
  EXPECT_EQ(engine.run(dims(odd)).deviated, 0u);
}

TEST(ReplayShapes, ShapesAtRandomAreNotTakenForAGrowingOne) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Engine engine(growing_network());
    for (int i = 0; i < 60; ++i) {
      const auto past = static_cast<std::int64_t>(64 + random() % 64);
      const Dims dims{1, past, 1, past + 1};
      engine.run(dims);
      const auto plan = engine.replay->plan("model", dims);
      if (i < 6 || plan == nullptr) continue;
      EXPECT_LE(plan->size, std::uint64_t{8} * 4 * 512 * static_cast<std::uint64_t>(past + 1) * 102 / 100)
          << "seed " << seed << ", run " << i;
    }
  }
}

TEST(ReplayShapes, AnArenaGrowsExactlyWhereThereAreNotAddressesForMore) {
  std::uint64_t faulted = 0;
  Engine engine(growing_network(), with_pages(&faulted));
  engine.arena->most_bytes = std::size_t{8} * 4 * 512 * 128;
  for (std::int64_t past = 64; past < 120; ++past) engine.run({1, past, 1, past + 1});
  const ReplayRun last = engine.run({1, 120, 1, 121});
  EXPECT_EQ(last.planned, last.requests);
}

TEST(ReplayShapes, AWrongPredictionCostsADeviationAndIsLearnedFrom) {
  // Like a product of the dimensions, until it is not.
  const Network network{{[](const Dims& d) { return static_cast<std::uint64_t>(64 * d[0] + (d[0] > 100 ? 4096 : 0)); }},
                        {[](const Dims&) { return std::uint64_t{640}; }}};
  Engine engine(network);
  for (const std::int64_t n : {10, 20, 30}) engine.run({n});
  ASSERT_TRUE(engine.run({40}).predicted);
  const ReplayRun wrong = engine.run({200});
  EXPECT_TRUE(wrong.predicted);
  EXPECT_EQ(wrong.deviated, 1u);
  const ReplayRun again = engine.run({200});
  EXPECT_EQ(again.deviated, 0u) << "the plan was made anew from what the run did";
  EXPECT_EQ(again.planned, 2u);
}

TEST(ReplayShapes, FindsWorkspacesOfOneSoundInABatch) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    const std::int64_t border = 200 + static_cast<std::int64_t>(random() % 150);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto frames = [](const Dims& d) { return (d[1] - 64) / 128; };
    const auto bytes = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    Network network;
    for (int layer = 0; layer < 4; ++layer) {
      network.push_back({[=](const Dims& d) { return bytes(4 * 258 * frames(d) * d[0]); }, 2});
      // The workspace is that of one sound, whatever the batch.
      network.push_back({[=](const Dims& d) { return bytes(frames(d) < border ? 1024 * frames(d) : 65'536); }, 1});
      network.push_back({[=](const Dims& d) { return bytes(256 * ((frames(d) + 1) / 2) * d[0]); }, 3});
    }
    Engine engine(network);
    unsigned deviating = 0;
    for (int i = 0; i < 50; ++i) {
      const auto batch = static_cast<std::int64_t>(1 + random() % 4);
      const ReplayRun run = engine.run({batch, 8000 + static_cast<std::int64_t>(random() % 60'000)});
      EXPECT_FALSE(run.recorded && i >= 6) << "run " << i;
      deviating += run.deviated > 0 && i >= 25 ? 1 : 0;
    }
    EXPECT_EQ(deviating, 0u);
  }
}

TEST(ReplayShapes, ARequestThatWasNotPredictedCostsItselfAlone) {
  // The first request is once larger than ever; the others come in blocks, so that they are predicted too large.
  Network network{{[](const Dims& d) { return static_cast<std::uint64_t>(d[0] == 650 ? 1 << 24 : 4096 * d[0]); }, 1}};
  for (int i = 0; i < 12; ++i)
    network.push_back({[i](const Dims& d) { return static_cast<std::uint64_t>((d[0] / 37 + 7 + i) * 8192); }, 2});
  Engine engine(network);
  for (const std::int64_t n : {100, 555, 230, 871, 990, 410, 333, 720}) engine.run({n});
  const ReplayRun run = engine.run({650});
  EXPECT_TRUE(run.predicted);
  EXPECT_EQ(run.deviated, 1u);
  EXPECT_EQ(run.planned, 12u);
}

TEST(ReplayShapes, LearnsNothingFromARunThatFailed) {
  Engine engine(image_network());
  for (const Dims& dims : std::vector<Dims>{{1, 3, 320, 320}, {1, 3, 640, 320}, {1, 3, 320, 640}}) engine.run(dims);
  // The engine stops at its second request, for shapes with and without a plan.
  for (const std::int64_t batch : {1, 5})
    for (std::int64_t width = 30; width < 50; ++width) {
      ASSERT_TRUE(engine.replay->begin_run("model", Dims{batch, 3, 64, width}));
      engine.replay->release(engine.replay->allocate(12'345));
      const ReplayRun failed = engine.replay->end_run(true);
      EXPECT_EQ(failed.requests, 1u);
    }
  const ReplayRun run = engine.run({1, 3, 480, 960});
  EXPECT_TRUE(run.predicted);
  EXPECT_EQ(run.planned, run.requests);
  EXPECT_EQ(engine.replay->trace("model", Dims{5, 3, 64, 40}), nullptr);
}

// Sound of any length: a convolution whose workspace is as large as its unfolded input up to some number of frames, and
// of a fixed size beyond; one that works in blocks of frames; and its tensors.
Network sound_network(std::int64_t border, std::int64_t block) {
  const auto frames = [](const Dims& d) { return (d[1] - 512) / 160 + 1; };
  const auto bytes = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  Network network;
  for (int layer = 0; layer < 3; ++layer) {
    network.push_back({[=](const Dims& d) { return bytes(4 * 257 * frames(d)); }, 3});
    network.push_back({[=](const Dims& d) { return bytes(frames(d) < border ? 2048 * frames(d) : 65'536); }, 1});
    network.push_back({[=](const Dims& d) { return bytes((frames(d) + block - 1) / block * block * 128); }, 1});
    network.push_back({[=](const Dims& d) { return bytes(4 * 32 * frames(d)); }, 2});
  }
  return network;
}

TEST(ReplayShapes, RecordsNothingAfterTheSixthRunWhereSizesHaveBordersAndSteps) {
  std::mt19937 random(test::seed());
  constexpr unsigned kTurns = 20;
  unsigned deviating = 0;
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const std::int64_t border = 100 + static_cast<std::int64_t>(random() % 700);
    const std::int64_t block = 8 + static_cast<std::int64_t>(random() % 100);
    SCOPED_TRACE("border " + std::to_string(border) + ", block " + std::to_string(block));
    Engine engine(sound_network(border, block));
    for (int i = 0; i < 60; ++i) {
      const ReplayRun run = engine.run({1, 8000 + static_cast<std::int64_t>(random() % 152'000)});
      EXPECT_FALSE(run.recorded && i >= 6) << "run " << i;
      deviating += run.deviated > 0 ? 1 : 0;
    }
  }
  // The first run on a side of a border that no recording has shown cannot be known.
  EXPECT_LE(deviating, kTurns) << "of " << 60 * kTurns << " runs";
}

TEST(ReplayShapes, FallsBackToARecordingPerShapeForWhatIsNoFunctionAndSaysSo) {
  const Network network{{[](const Dims& d) {
    std::uint64_t hash = static_cast<std::uint64_t>(d[0]) * 0x9e3779b97f4a7c15u;
    return 64 + (hash >> 40) % 100'000;
  }}};
  Engine engine(network, {.max_recordings = 8});
  for (int turn = 0; turn < 2; ++turn)
    for (std::int64_t n = 40; n > 20; --n) {
      const ReplayRun run = engine.run({n});
      if (turn == 1) {
        EXPECT_EQ(run.planned, 1u) << n;
      }
    }
  EXPECT_EQ(engine.replay->counters().unlearned, 1u);
}

TEST(ReplayShapes, KeepsPlansWithinTheirBounds) {
  Engine engine(image_network(), {.max_plans = 5});
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    engine.run(
        {1, 3, 32 * static_cast<std::int64_t>(1 + random() % 20), 32 * static_cast<std::int64_t>(1 + random() % 20)});
    EXPECT_LE(engine.replay->counters().plans, 5u);
  }
  EXPECT_GT(engine.replay->counters().forgotten, 0u);
  Engine tight(image_network(), {.max_plan_bytes = 6000});
  for (std::int64_t i = 1; i < 30; ++i) {
    tight.run({1, 3, 32 * i, 64});
    EXPECT_TRUE(tight.replay->counters().plan_bytes <= 6000 || tight.replay->counters().plans == 1);
  }
}

TEST(ReplayShapes, SavedPlansTeachTheNextProcess) {
  Engine first(image_network());
  for (const Dims& dims : std::vector<Dims>{{1, 3, 320, 320}, {1, 3, 640, 320}, {1, 3, 320, 640}}) first.run(dims);
  ASSERT_TRUE(first.replay->plan_recorded());
  const std::string saved = first.replay->save_plans("stamp");
  Engine second(image_network());
  ASSERT_TRUE(second.replay->load_plans(saved, "stamp"));
  EXPECT_TRUE(second.run({1, 3, 736, 480}).predicted);
  EXPECT_EQ(second.replay->counters().recorded_runs, 0u);
  EXPECT_EQ(second.replay->save_plans("stamp"), saved) << "predictions are not saved";
}

TEST(ReplayShapes, ForgetsAKeyWithAllItLearned) {
  Engine engine(image_network());
  for (const std::int64_t width : {320, 352, 416}) engine.run({1, 3, 320, width});
  engine.replay->forget("model");
  EXPECT_EQ(engine.replay->counters().plans, 0u);
  EXPECT_TRUE(engine.run({1, 3, 320, 800}).recorded);
}

TEST(ReplayShapes, KeepsOutputsOutOfPredictedPlansToo) {
  auto memory = std::make_shared<FakeMemory>();
  Replay replay(memory, memory, {.planner = first_fit});
  std::vector<std::pair<unsigned char*, unsigned char>> outputs;
  for (std::int64_t n = 1; n < 20; ++n) {
    ASSERT_TRUE(replay.begin_run("k", Dims{n}));
    void* scratch = replay.allocate(static_cast<std::size_t>(1024 * n));
    auto* output = static_cast<unsigned char*>(replay.allocate(static_cast<std::size_t>(512 * n)));
    replay.release(scratch);
    std::memset(output, static_cast<int>(n), static_cast<std::size_t>(512 * n));
    outputs.emplace_back(output, static_cast<unsigned char>(n));
    replay.end_run();
  }
  for (const auto& [output, mark] : outputs)
    for (std::size_t i = 0; i < 512u * mark; ++i) ASSERT_EQ(output[i], mark);
  for (const auto& [output, mark] : outputs) replay.release(output);
}

}  // namespace
}  // namespace berth
