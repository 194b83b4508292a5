// The adapter against ncnn itself. The header is included before those of ncnn, which it must not need.
#include "berth/engines/ncnn.h"
// The engine.
#include <datareader.h>
#include <gtest/gtest.h>
#include <net.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "berth/alloc/limit.h"
#include "berth/berth.h"
#include "support/ncnn_networks.h"
#include "support/seed.h"

namespace berth::engines {
namespace {

using testing::NcnnNetwork;
using Output = std::vector<float>;

constexpr unsigned kRuns = 4;

EngineMemoryOptions patient() {
  EngineMemoryOptions options;
  options.replay.planning.time_limit = 20;  // under a sanitizer, on a machine with much else to do
  return options;
}

// Some layers keep weights in memory of the option with which they are loaded.
std::unique_ptr<ncnn::Net> load(const NcnnNetwork& network, NcnnMemory* memory, int threads = 1) {
  auto net = std::make_unique<ncnn::Net>();
  net->opt.num_threads = threads;
  if (memory != nullptr) memory->prepare(net->opt);
  EXPECT_EQ(net->load_param_mem(network.param.c_str()), 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(network.bin.data());
  ncnn::DataReaderFromMemory reader(bytes);
  EXPECT_EQ(net->load_model(reader), 0);
  return net;
}

ncnn::Mat random_image(int width, int height, unsigned seed) {
  ncnn::Mat image(width, height, 3);
  std::mt19937 random(seed);
  for (int c = 0; c < 3; ++c) {
    float* channel = image.channel(c);
    for (int i = 0; i < width * height; ++i) channel[i] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  }
  return image;
}

Output copy(const ncnn::Mat& mat) {
  Output values;
  const std::size_t plane = static_cast<std::size_t>(mat.w) * static_cast<std::size_t>(mat.h);
  for (int c = 0; c < mat.c; ++c) {
    const float* channel = mat.channel(c);
    values.insert(values.end(), channel, channel + plane);
  }
  return values;
}

bool same_bits(const Output& a, const Output& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

Output run(const ncnn::Net& net, const ncnn::Mat& in) {
  ncnn::Extractor extractor = net.create_extractor();
  ncnn::Mat out;
  EXPECT_EQ(extractor.input("in", in), 0);
  EXPECT_EQ(extractor.extract("out", out), 0);
  return copy(out);
}

// The largest sum of what is live at once, in the units in which requests are placed.
std::uint64_t live_peak_in_lines(const ReplayTrace& trace) {
  std::uint64_t peak = 0;
  for (std::size_t at = 0; at < trace.requests.size(); ++at) {
    std::uint64_t live = 0;
    for (std::size_t i = 0; i <= at; ++i)
      if (!trace.requests[i].kept && trace.requests[i].released_at > at)
        live += (trace.requests[i].bytes + 63) / 64 * 64;
    peak = std::max(peak, live);
  }
  return peak;
}

TEST(Ncnn, GivesTheSameBitsFromAnArenaOfTheLivePeak) {
  for (const std::uint32_t seed : test::seeds(3))
    for (const NcnnNetwork& network : testing::draw_ncnn_networks(seed, 1)) {
      SCOPED_TRACE(network.name + ", seed " + std::to_string(seed));
      const auto stock = load(network, nullptr);
      auto memory = NcnnMemory::create(patient()).value();
      const auto net = load(network, memory.get());
      const std::uint64_t weights = memory->replay().counters().pool_bytes;
      for (unsigned i = 0; i < kRuns; ++i) {
        const ncnn::Mat in = random_image(network.width, network.height, seed + i);
        auto scope = memory->run(network.name, in);
        ASSERT_TRUE(scope.status);
        EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in))) << "run " << i;
        const ReplayRun did = scope.end();
        EXPECT_EQ(did.recorded, i == 0);
        EXPECT_EQ(did.deviated, 0u);
      }
      const std::vector<std::int64_t> dimensions{network.width, network.height, 1, 3, 4};
      const auto trace = memory->replay().trace(network.name, dimensions);
      ASSERT_NE(trace, nullptr);
      EXPECT_GE(trace->requests.size(), 8u);
      EXPECT_EQ(memory->replay().counters().arena_bytes, live_peak_in_lines(*trace));
      EXPECT_EQ(memory->replay().counters().planned, (kRuns - 1) * trace->requests.size());
      EXPECT_EQ(memory->replay().counters().pool_bytes, weights);
    }
}

// Without this, equal bits could mean that no output depends on what the memory holds.
TEST(Ncnn, OutputsShowAnAllocatorThatReturnsMemoryTwice) {
  class Overlapping final : public ncnn::Allocator {
   public:
    void* fastMalloc(std::size_t bytes) override {
      ++requests;
      if (bytes > sizeof memory_) return nullptr;
      return memory_;
    }
    void fastFree(void*) override {}
    unsigned requests = 0;

   private:
    alignas(64) unsigned char memory_[8 << 20];
  };
  for (const NcnnNetwork& network : testing::draw_ncnn_networks(test::seed(), 1)) {
    const ncnn::Mat in = random_image(network.width, network.height, 1),
                    other = random_image(network.width, network.height, 2);
    const auto net = load(network, nullptr);
    const Output expected = run(*net, in);
    EXPECT_FALSE(same_bits(expected, run(*net, other))) << network.name << ": the output does not depend on the input";
    const auto broken = std::make_unique<Overlapping>();
    net->opt.blob_allocator = broken.get();
    ncnn::Extractor extractor = net->create_extractor();
    ncnn::Mat out;
    extractor.input("in", in);
    EXPECT_FALSE(extractor.extract("out", out) == 0 && same_bits(expected, copy(out))) << network.name;
    EXPECT_GT(broken->requests, 1u);
  }
}

TEST(Ncnn, RefusesAPlanWithOverlapsAndKeepsTheBits) {
  const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[1];
  EngineMemoryOptions options;
  options.replay.planner = [](const PlanProblem& problem) -> Result<MemoryPlan> {
    MemoryPlan plan = berth::plan(problem).value();
    for (Slot& slot : plan.slots) slot.offset = 0;
    return plan;
  };
  auto memory = NcnnMemory::create(std::move(options)).value();
  const auto stock = load(network, nullptr), net = load(network, memory.get());
  const ncnn::Mat in = random_image(network.width, network.height, 7);
  for (unsigned i = 0; i < kRuns; ++i) {
    auto scope = memory->run("net", in);
    EXPECT_EQ(scope.status.has_value(), i == 0) << "a plan that is not valid is an error of the run that would use it";
    EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in)));
  }
  EXPECT_EQ(memory->replay().counters().planned, 0u);
}

TEST(Ncnn, NetsShareOneArena) {
  const std::vector<NcnnNetwork> networks = testing::draw_ncnn_networks(test::seed(), 1);
  auto memory = NcnnMemory::create(patient()).value();
  std::vector<std::unique_ptr<ncnn::Net>> nets, stocks;
  for (const NcnnNetwork& network : networks) {
    nets.push_back(load(network, memory.get()));
    stocks.push_back(load(network, nullptr));
  }
  for (unsigned i = 0; i < kRuns; ++i)
    for (std::size_t n = 0; n < networks.size(); ++n) {
      const ncnn::Mat in = random_image(networks[n].width, networks[n].height, i);
      auto scope = memory->run(networks[n].name, in);
      EXPECT_TRUE(same_bits(run(*nets[n], in), run(*stocks[n], in))) << networks[n].name;
    }
  std::uint64_t largest = 0;
  for (const NcnnNetwork& network : networks) {
    const std::vector<std::int64_t> dimensions{network.width, network.height, 1, 3, 4};
    largest = std::max(largest, memory->replay().plan(network.name, dimensions)->size);
  }
  EXPECT_EQ(memory->replay().counters().arenas, 1u);
  EXPECT_EQ(memory->replay().counters().arena_bytes, largest);
}

TEST(Ncnn, RunsThatOverlapEachHaveAnArenaAndTheSameBits) {
  constexpr unsigned kThreads = 3;
  const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[3];
  auto memory = NcnnMemory::create(patient()).value();
  const auto stock = load(network, nullptr), net = load(network, memory.get());
  std::vector<ncnn::Mat> images;
  std::vector<Output> expected;
  for (unsigned t = 0; t < kThreads; ++t) {
    images.push_back(random_image(network.width, network.height, t));
    expected.push_back(run(*stock, images.back()));
  }
  std::atomic<unsigned> good{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 20; ++i) {
        const ncnn::Mat in = images[t].clone();
        auto scope = memory->run("net", in);
        good += same_bits(run(*net, in), expected[t]) ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, kThreads * 20);
  const ReplayCounters counters = memory->replay().counters();
  EXPECT_EQ(counters.recorded_runs, 1u);
  EXPECT_EQ(counters.deviated, 0u);
  EXPECT_EQ(counters.unattributed, 0u) << "ncnn allocates on the thread that extracts";
  EXPECT_LE(counters.arenas, kThreads);
}

TEST(Ncnn, GivesTheSameBitsWithThreadsOfItsOwn) {
  for (const NcnnNetwork& network : testing::draw_ncnn_networks(test::seed(), 1)) {
    auto memory = NcnnMemory::create(patient()).value();
    const auto stock = load(network, nullptr, 2), net = load(network, memory.get(), 2);
    const ncnn::Mat in = random_image(network.width, network.height, 5);
    for (unsigned i = 0; i < kRuns; ++i) {
      auto scope = memory->run("net", in);
      EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in))) << network.name;
    }
    EXPECT_GT(memory->replay().counters().planned, 0u);
  }
}

TEST(Ncnn, ServesShapesThatItHasNotSeenWithTheSameBits) {
  for (const std::size_t family : {std::size_t{1}, std::size_t{3}}) {
    const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[family];
    auto memory = NcnnMemory::create(patient()).value();
    const auto stock = load(network, nullptr), net = load(network, memory.get());
    std::mt19937 random(test::seed());
    for (unsigned i = 0; i < 24; ++i) {
      const auto extent = [&] { return network.multiple * (1 + static_cast<int>(random() % 6)); };
      const int width = extent(), height = extent();
      const ncnn::Mat in = random_image(width, height, i);
      auto scope = memory->run(network.name, in);
      EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in))) << network.name << ' ' << width << 'x' << height;
    }
    EXPECT_LT(memory->replay().counters().recorded_runs, 24u);
    EXPECT_GT(memory->replay().counters().planned, 0u);
  }
}

TEST(Ncnn, MatsMayBeKeptAndTheirMemoryComesBack) {
  const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[3];
  auto memory = NcnnMemory::create(patient()).value();
  auto net = load(network, memory.get());
  const auto stock = load(network, nullptr);
  {
    std::vector<ncnn::Mat> kept;
    std::vector<Output> expected;
    for (unsigned i = 0; i < 6; ++i) {
      const ncnn::Mat in = random_image(network.width, network.height, i);
      expected.push_back(run(*stock, in));
      auto scope = memory->run("net", in);
      ncnn::Extractor extractor = net->create_extractor();
      extractor.input("in", in);
      ncnn::Mat out;
      ASSERT_EQ(extractor.extract("out", out), 0);
      kept.push_back(out);
    }
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(same_bits(copy(kept[i]), expected[i])) << "run " << i;
  }
  EXPECT_GT(memory->replay().counters().arena_bytes, 0u);
  memory->replay().give_back(true);
  EXPECT_EQ(memory->replay().counters().arena_bytes, 0u);
  EXPECT_EQ(memory->replay().counters().pool_bytes, 0u);
  const ncnn::Mat in = random_image(network.width, network.height, 9);
  auto scope = memory->run("net", in);
  EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in)));
}

TEST(Ncnn, WithoutMemoryTheLayerFailsAndALaterRunSucceeds) {
  const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[1];
  const auto stock = load(network, nullptr);
  const ncnn::Mat in = random_image(network.width, network.height, 3);
  const Output expected = run(*stock, in);
  const AllocatorPtr cpu = device("CPU").value();
  unsigned failed = 0, succeeded = 0;
  for (std::size_t bytes = 4096; bytes <= (std::size_t{64} << 20); bytes *= 2) {
    EngineMemoryOptions options = patient();
    options.arena_memory = options.pool = make_limit(cpu, bytes);
    auto memory = NcnnMemory::create(std::move(options)).value();
    const auto net = load(network, nullptr);
    memory->prepare(net->opt);
    for (unsigned i = 0; i < kRuns; ++i) {
      auto scope = memory->run("net", in);
      ncnn::Extractor extractor = net->create_extractor();
      extractor.input("in", in);
      ncnn::Mat out;
      const int status = extractor.extract("out", out);
      if (status == 0) {
        EXPECT_TRUE(same_bits(copy(out), expected)) << bytes;
        ++succeeded;
      } else {
        EXPECT_EQ(status, -100) << bytes;
        ++failed;
      }
    }
    memory->replay().give_back(true);
    EXPECT_EQ(memory->replay().counters().pool_bytes, 0u) << bytes;
  }
  EXPECT_GT(failed, 0u);
  EXPECT_GT(succeeded, 0u);
}

TEST(Ncnn, MisuseIsAnErrorOfNcnnAndLosesNothing) {
  const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[0];
  auto memory = NcnnMemory::create(patient()).value();
  const auto net = load(network, memory.get()), stock = load(network, nullptr);
  const std::uint64_t weights = memory->replay().counters().pool_bytes;
  const ncnn::Mat in = random_image(network.width, network.height, 3);
  ncnn::Mat out;
  {
    auto scope = memory->run("net", in);
    ncnn::Extractor extractor = net->create_extractor();
    EXPECT_EQ(extractor.input("no such blob", in), -1);
    EXPECT_EQ(extractor.extract("no such blob", out), -1);
    EXPECT_NE(extractor.extract("out", out), 0) << "there is no input";
    EXPECT_EQ(extractor.input("in", ncnn::Mat()), 0);
    EXPECT_NE(extractor.extract("out", out), 0) << "the input is empty";
  }
  {
    auto outer = memory->run("net", in);
    auto inner = memory->run("another key", ncnn::Mat());
    EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in))) << "a run inside another";
  }
  EXPECT_TRUE(same_bits(run(*net, in), run(*stock, in))) << "outside of a run";
  memory->fastFree(nullptr);
  EXPECT_EQ(memory->fastMalloc(0), nullptr);
  EXPECT_EQ(memory->fastMalloc(SIZE_MAX), nullptr);
  EXPECT_EQ(memory->replay().counters().pool_bytes, weights);
}

TEST(Ncnn, OneExtractorCanBePreparedAlone) {
  const NcnnNetwork network = testing::draw_ncnn_networks(test::seed(), 1)[2];
  auto memory = NcnnMemory::create(patient()).value();
  const auto net = load(network, nullptr);
  const ncnn::Mat in = random_image(network.width, network.height, 3);
  const Output expected = run(*net, in);
  for (unsigned i = 0; i < kRuns; ++i) {
    auto scope = memory->run("net", in);
    ncnn::Extractor extractor = net->create_extractor();
    memory->prepare(extractor);
    extractor.input("in", in);
    ncnn::Mat out;
    ASSERT_EQ(extractor.extract("out", out), 0);
    EXPECT_TRUE(same_bits(copy(out), expected));
  }
  EXPECT_GT(memory->replay().counters().planned, 0u);
}

}  // namespace
}  // namespace berth::engines
