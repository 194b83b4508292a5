#include "berth/engines/onnxruntime.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "engines/onnxruntime_session.h"
#include "support/decoder_onnx.h"
#include "support/tiny_onnx.h"

#if __has_include(<onnxruntime_c_api.h>)
#include <onnxruntime_c_api.h>
#endif

namespace berth {

using namespace internal;

namespace {

using ort::Engine;
using ort::Model;
using ort::Tensor;

#if __has_include(<onnxruntime_c_api.h>)
// Where the SDK is there, our declarations are compared with it.
static_assert(offsetof(OrtApi, Run) == offsetof(ort::Api, run));
static_assert(offsetof(OrtApi, CreateSession) == offsetof(ort::Api, create_session));
static_assert(offsetof(OrtApi, CreateTensorWithDataAsOrtValue) == offsetof(ort::Api, create_tensor_with_data));
static_assert(offsetof(OrtApi, RegisterAllocator) == offsetof(ort::Api, register_allocator));
static_assert(offsetof(OrtApi, AllocatorGetStats) == offsetof(ort::Api, allocator_get_stats));
static_assert(offsetof(OrtAllocator, Reserve) == offsetof(ort::Allocator, reserve));
#endif

using Outputs = std::vector<std::vector<std::byte>>;

class OnnxRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<const ort::Library*> library = ort::library();
    if (!library) GTEST_SKIP() << library.error().message();
    folder_ = std::filesystem::temp_directory_path() / ("berth-ort-test-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    path_ = (folder_ / "tiny.onnx").string();
    testing::write_tiny_onnx(path_);
    engine_ = Engine::create().value();
  }
  void TearDown() override {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::vector<Tensor> rows(std::int64_t count) {
    Tensor tensor{.name = "x", .element_type = ort::kElementF32, .shape = {count, 64}, .bytes = {}};
    tensor.bytes.resize(static_cast<std::size_t>(count) * 64 * 4);
    std::mt19937 random(static_cast<unsigned>(count));
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 4) {
      const float value = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
      std::memcpy(tensor.bytes.data() + i, &value, 4);
    }
    std::vector<Tensor> tensors;
    tensors.push_back(std::move(tensor));
    return tensors;
  }

  static Outputs copy(const std::vector<ort::Output>& outputs) {
    Outputs copies;
    for (const ort::Output& output : outputs) {
      const auto view = output.view().value();
      copies.emplace_back(view.bytes.begin(), view.bytes.end());
    }
    return copies;
  }

  Outputs stock(std::int64_t count, int threads = 1) {
    auto model = engine_->open({.model = path_, .threads = threads}).value();
    std::vector<Tensor> inputs = rows(count);
    model->bind(inputs).value();
    return copy(model->run().value());
  }

  std::filesystem::path folder_;
  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(OnnxRuntime, GivesTheSameBitsFromOnePlannedArenaOnOneAndTwoThreads) {
  for (const int threads : {1, 2}) {
    const Outputs expected = stock(96, threads);
    auto memory = engine_->attach_memory().value();
    auto model = engine_->open({.model = path_, .threads = threads, .memory = memory.get()}).value();
    std::vector<Tensor> inputs = rows(96);
    model->bind(inputs).value();
    for (int i = 0; i < 6; ++i) {
      auto run = memory->run("96");
      ASSERT_TRUE(run.status);
      const auto outputs = model->run().value();
      const ReplayRun did = run.end();
      EXPECT_EQ(did.recorded, i == 0);
      EXPECT_EQ(did.deviated, 0u);
      EXPECT_EQ(copy(outputs), expected) << "run " << i;
    }
    const auto trace = memory->replay().trace("96");
    ASSERT_NE(trace, nullptr);
    EXPECT_GE(trace->requests.size(), 4u);
    EXPECT_EQ(memory->replay().counters().arena_bytes, trace->live_peak());
    EXPECT_EQ(memory->replay().counters().planned, 5 * trace->requests.size());
  }
}

TEST_F(OnnxRuntime, ServesAShapeItDidNotRecordWithoutCorruptingIt) {
  const Outputs small = stock(32), large = stock(200);
  auto memory = engine_->attach_memory().value();
  auto model = engine_->open({.model = path_, .memory = memory.get()}).value();
  std::uint64_t deviated = 0;
  for (int i = 0; i < 12; ++i) {
    const bool is_large = i % 3 == 2;
    std::vector<Tensor> inputs = rows(is_large ? 200 : 32);
    model->bind(inputs).value();
    auto run = memory->run("one key for all shapes");
    const auto outputs = model->run().value();
    deviated += run.end().deviated;
    EXPECT_EQ(copy(outputs), is_large ? large : small) << "run " << i;
  }
  EXPECT_GT(deviated, 0u);
}

TEST_F(OnnxRuntime, LeavesOutputsThatAreKeptAcrossRunsAlone) {
  const Outputs expected = stock(64);
  auto memory = engine_->attach_memory().value();
  auto model = engine_->open({.model = path_, .memory = memory.get()}).value();
  std::vector<Tensor> inputs = rows(64);
  model->bind(inputs).value();
  std::vector<std::vector<ort::Output>> kept;
  for (int i = 0; i < 5; ++i) {
    auto run = memory->run("64");
    kept.push_back(model->run().value());
  }
  for (const auto& outputs : kept) EXPECT_EQ(copy(outputs), expected);
  EXPECT_EQ(memory->replay().counters().deviating_runs, 0u);
}

TEST_F(OnnxRuntime, SharesOneArenaBetweenSessionsThatTakeTurns) {
  testing::write_tiny_onnx(path_ + ".wide", 512);
  auto memory = engine_->attach_memory().value();
  auto narrow = engine_->open({.model = path_, .memory = memory.get()}).value();
  auto wide = engine_->open({.model = path_ + ".wide", .memory = memory.get()}).value();
  std::vector<Tensor> inputs = rows(64);
  narrow->bind(inputs).value();
  wide->bind(inputs).value();
  for (int i = 0; i < 3; ++i) {
    {
      auto run = memory->run("narrow");
      ASSERT_TRUE(narrow->run());
    }
    auto run = memory->run("wide");
    ASSERT_TRUE(wide->run());
  }
  const std::uint64_t larger = std::max(memory->replay().plan("narrow")->size, memory->replay().plan("wide")->size);
  EXPECT_EQ(memory->replay().counters().arena_bytes, larger);
}

TEST_F(OnnxRuntime, ThreadsThatRunAtTheSameTimeEachHaveAnArenaAndTheSameBits) {
  constexpr unsigned kThreads = 4;
  const Outputs expected = stock(96);
  auto memory = engine_->attach_memory().value();
  auto model = engine_->open({.model = path_, .memory = memory.get()}).value();
  const std::vector<Tensor> inputs = rows(96);
  const std::vector<ort::InputView> views{{inputs[0].shape, inputs[0].bytes}};
  const std::vector<std::size_t> wanted{0, 1};
  std::atomic<unsigned> good{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 40; ++i) {
        auto run = memory->run("tiny", inputs[0].shape);
        const auto outputs = model->run(views, wanted).value();
        good += copy(outputs) == expected ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, kThreads * 40);
  const ReplayCounters counters = memory->replay().counters();
  EXPECT_EQ(counters.recorded_runs, 1u);
  EXPECT_EQ(counters.deviated, 0u);
  EXPECT_EQ(counters.unattributed, 0u) << "the engine allocates on the thread that runs";
  EXPECT_LE(counters.arenas, kThreads);
  EXPECT_LE(counters.arena_bytes, kThreads * memory->replay().plan("tiny", inputs[0].shape)->size);
}

TEST_F(OnnxRuntime, PlansShapesThatItDidNotRecordWithTheSameBits) {
  auto memory = engine_->attach_memory().value();
  auto model = engine_->open({.model = path_, .memory = memory.get()}).value();
  const std::vector<std::size_t> wanted{0, 1};
  std::mt19937 random(5);
  for (int i = 0; i < 30; ++i) {
    const std::int64_t count = 1 + random() % 300;
    const Outputs expected = stock(count);
    const std::vector<Tensor> inputs = rows(count);
    const std::vector<ort::InputView> views{{inputs[0].shape, inputs[0].bytes}};
    auto run = memory->run("tiny", inputs[0].shape);
    EXPECT_EQ(copy(model->run(views, wanted).value()), expected) << count << " rows";
    const ReplayRun did = run.end();
    if (i >= 6) {
      EXPECT_FALSE(did.recorded) << count << " rows";
      EXPECT_EQ(did.deviated, 0u) << count << " rows";
    }
  }
  EXPECT_LE(memory->replay().counters().recorded_runs, 6u);
}

TEST_F(OnnxRuntime, PlansADecoderWhoseCacheGrowsAndKeepsTheCachesApart) {
  constexpr unsigned kLayers = 2, kWidth = 64;
  constexpr int kSteps = 60;
  const std::string bytes = testing::decoder_onnx(kLayers, kWidth);
  const std::span<const std::byte> data{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
  // The caches that a step returns are the inputs of the next, as values of the engine: they stay where they are.
  const auto decode = [&](engines::OnnxRuntimeMemory* memory, unsigned& planned) {
    auto model = engine_->open({.bytes = data, .memory = memory}).value();
    Outputs results;
    std::vector<ort::Output> kept;
    std::vector<std::byte> x(4 * kWidth), first(4 * kWidth);
    for (int step = 0; step < kSteps; ++step) {
      const float value = static_cast<float>(step) / kSteps;
      for (std::size_t i = 0; i < kWidth; ++i) std::memcpy(x.data() + 4 * i, &value, 4);
      std::vector<ort::InputView> views{{{1, kWidth}, x}};
      std::vector<std::int64_t> dims{1, kWidth};
      std::vector<std::size_t> wanted;
      for (std::size_t i = 0; i < 2 * kLayers; ++i) {
        const std::int64_t past = 1 + step;
        views.push_back({{past, kWidth}, step == 0 ? std::span<const std::byte>(first) : kept[1 + i].view()->bytes});
        dims.insert(dims.end(), {past, kWidth});
      }
      for (std::size_t i = 0; i <= 2 * kLayers; ++i) wanted.push_back(i);
      std::optional<engines::OnnxRuntimeMemory::Run> run;
      if (memory != nullptr) run.emplace(memory->replay(), "decoder", dims);
      std::vector<ort::Output> made = model->run(views, wanted).value();
      if (run) {
        const ReplayRun did = run->end();
        planned += !did.recorded && did.deviated == 0 ? 1 : 0;
      }
      const auto view = made[0].view().value();
      results.emplace_back(view.bytes.begin(), view.bytes.end());
      kept.swap(made);
    }
    return results;
  };
  unsigned planned = 0;
  const Outputs expected = decode(nullptr, planned);
  auto memory = engine_->attach_memory().value();
  EXPECT_EQ(decode(memory.get(), planned), expected);
  EXPECT_GE(planned, kSteps - 10u);
}

TEST_F(OnnxRuntime, RunsFromAMappedModelWithTheSameBitsAndFewerWeightBytes) {
  const Outputs expected = stock(48);
  const std::string ready = path_ + ".ort";
  ASSERT_TRUE(engine_->open({.model = path_, .save_ready_model = ready}));
  auto mapped = ort::MappedModel::open(ready).value();
  auto memory = engine_->attach_memory().value();
  auto model = engine_->open({.model = path_, .mapped = &mapped, .memory = memory.get()}).value();
  mapped.forget_pages();
  std::vector<Tensor> inputs = rows(48);
  model->bind(inputs).value();
  for (int i = 0; i < 3; ++i) {
    auto run = memory->run("48");
    EXPECT_EQ(copy(model->run().value()), expected);
  }
}

TEST_F(OnnxRuntime, SharesWhatALoadKeepsThroughAFolderWithTheSameBits) {
  testing::write_tiny_onnx(path_, 512);
  const Outputs expected = stock(48);
  auto memory = engine_->attach_memory().value();
  const std::string folder = (folder_ / "weights").string();
  for (int i = 0; i < 2; ++i) {
    engines::OnnxRuntimeMemory::Load load(*memory, folder);
    auto model = engine_->open({.model = path_, .memory = memory.get()}).value();
    const engines::SharedWeights shared = load.end();
    EXPECT_EQ(shared.problem, "");
    EXPECT_GE(shared.bytes, 64u * 512 * 4);
    EXPECT_EQ(shared.shared, shared.bytes);
    EXPECT_EQ(load.end().bytes, 0u) << "it has ended";
    std::vector<Tensor> inputs = rows(48);
    model->bind(inputs).value();
    for (int run = 0; run < 3; ++run) {
      auto scope = memory->run("48 of " + std::to_string(i));
      EXPECT_EQ(copy(model->run().value()), expected);
    }
  }
  EXPECT_FALSE(std::filesystem::is_empty(folder));
}

TEST_F(OnnxRuntime, ReportsTheStockArenaAndWhereItPutsThings) {
  auto model = engine_->open({.model = path_}).value();
  std::vector<Tensor> inputs = rows(96);
  model->bind(inputs).value();
  const ort::ArenaStats before = model->arena_stats().value();
  ASSERT_TRUE(model->run());
  const ort::ArenaStats after = model->arena_stats().value();
  EXPECT_GT(after.held, before.held);
  EXPECT_GE(after.held, after.max_in_use);
  EXPECT_GT(after.extensions, 0u);

  ReplayTrace trace;
  trace.requests = {{.bytes = 4096, .released_at = 2}, {.bytes = 4096}, {.bytes = 4096}};
  trace.releases = {0};
  const std::vector<std::uint64_t> addresses = model->arena_addresses(trace).value();
  ASSERT_EQ(addresses.size(), 3u);
  EXPECT_NE(addresses[0], addresses[1]);
  EXPECT_NE(addresses[1], addresses[2]);
  EXPECT_EQ(model->arena_stats().value().in_use, after.in_use) << "everything was given back";
}

TEST_F(OnnxRuntime, SaysWhatTheEngineSaysWhenAModelCannotBeLoadedOrRun) {
  const auto missing = engine_->open({.model = (folder_ / "none.onnx").string()});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kDriver);
  EXPECT_NE(missing.error().message().find("failed to load the model"), std::string::npos);

  auto model = engine_->open({.model = path_}).value();
  std::vector<Tensor> inputs = rows(4);
  inputs[0].shape = {8, 32};
  model->bind(inputs).value();
  const auto refused = model->run();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("failed to run the model"), std::string::npos);
  std::vector<Tensor> none;
  EXPECT_EQ(model->bind(none).error().code(), Code::kInvalidArgument);
}

TEST_F(OnnxRuntime, DescribesTheModelsInputsAndOutputs) {
  auto model = engine_->open({.model = path_}).value();
  ASSERT_EQ(model->inputs().size(), 1u);
  EXPECT_EQ(model->inputs()[0].name, "x");
  EXPECT_EQ(model->inputs()[0].element_type, ort::kElementF32);
  EXPECT_EQ(model->inputs()[0].shape, (std::vector<std::int64_t>{-1, 64}));
  EXPECT_EQ(model->inputs()[0].symbols[0], "rows");
  ASSERT_EQ(model->outputs().size(), 2u);
  EXPECT_EQ(model->outputs()[1].name, "d");
}

TEST_F(OnnxRuntime, RefusesASecondMemoryForOneEnvironment) {
  auto memory = engine_->attach_memory().value();
  const auto second = engine_->attach_memory();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
  memory.reset();
  EXPECT_TRUE(engine_->attach_memory());
}

TEST(MappedModel, SaysWhyAFileCannotBeMapped) {
  const auto missing = ort::MappedModel::open("/nonexistent/model.ort");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kIo);
}

}  // namespace
}  // namespace berth
