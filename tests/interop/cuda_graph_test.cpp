#include "berth/interop/cuda_graph.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <thread>

#include "berth/alloc/growable.h"
#include "berth/berth.h"
#include "doubles/cuda/cuda_kernels.h"
#include "support/seed.h"
#include "support/support.h"

namespace berth {
namespace {

using cuda_test::cuda_double;
using test::fails_with;
using Numbers = std::vector<std::uint32_t>;

constexpr std::size_t kCount = 256;  // what the kernel of the tests adds to

Numbers read(const Buffer& buffer) {
  Numbers numbers(buffer.size() / sizeof(std::uint32_t));
  buffer.copyout(std::as_writable_bytes(std::span(numbers))).value();
  return numbers;
}

void write(const Buffer& buffer, std::uint32_t value) {
  const Numbers numbers(buffer.size() / sizeof value, value);
  buffer.copyin(std::as_bytes(std::span(numbers))).value();
}

class CudaGraphTest : public cuda_test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    gpu_ = device("CUDA:0").value();
    queue_ = gpu_->make_queue().value();
    side_ = gpu_->make_queue().value();
    add_ = cuda_test::make_add_kernel(*gpu_).value();
    input_ = Buffer::allocate(gpu_, u32, {kCount}).value();
    write(input_, 100);
  }
  void TearDown() override {
    input_ = {};
    add_ = {};
    side_.reset();
    queue_.reset();
    gpu_.reset();
    CudaTest::TearDown();
  }

  // to = from + constant
  Result<void> add(Queue& queue, const Buffer& from, const Buffer& to, std::uint32_t constant) {
    return queue.launch(add_,
                        std::array{KernelArgument{from.window().value(), Access::kRead},
                                   KernelArgument{to.window().value(), Access::kWrite}},
                        {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1)));
  }
  Buffer numbers(const AllocatorPtr& memory) { return Buffer::allocate(memory, u32, {kCount}).value(); }

  DevicePtr gpu_;
  QueuePtr queue_, side_;
  Kernel add_;
  Buffer input_;
};

class CudaGraphOnDouble : public CudaGraphTest {
 protected:
  void SetUp() override {
    if (cuda_test::on_real_gpu()) GTEST_SKIP() << "needs the driver double";
    CudaGraphTest::SetUp();
  }
  void TearDown() override {
    if (!IsSkipped()) CudaGraphTest::TearDown();
  }
};

TEST_F(CudaGraphTest, RepeatsWhatWasCapturedAtTheSameAddresses) {
  auto capture = CudaCapture::begin(queue_).value();
  const Buffer hidden = numbers(capture.memory());
  const Buffer output = numbers(capture.memory());
  ASSERT_TRUE(add(*queue_, input_, hidden, 1));
  ASSERT_TRUE(add(*queue_, hidden, output, 2));
  CudaGraph graph = capture.end().value();
  const std::uint64_t address = output.native_handle();
  for (std::uint32_t value = 0; value < 3; ++value) {
    write(input_, value);
    const Timepoint done = graph.launch(*queue_).value();
    ASSERT_TRUE(wait(done));
    EXPECT_EQ(read(output), Numbers(kCount, value + 3));
    EXPECT_EQ(output.native_handle(), address);
  }
}

TEST_F(CudaGraphTest, RunsNothingDuringTheCapture) {
  const Buffer outside = numbers(gpu_);
  write(outside, 9);
  auto capture = CudaCapture::begin(queue_).value();
  ASSERT_TRUE(add(*queue_, input_, outside, 1));
  CudaGraph graph = capture.end().value();
  EXPECT_EQ(read(outside), Numbers(kCount, 9));
  ASSERT_TRUE(graph.launch(*queue_));
  EXPECT_EQ(read(outside), Numbers(kCount, 101)) << "a blocking copy waits for the launch";
}

TEST_F(CudaGraphTest, UsesMemoryThatNobodyOwns) {
  const Block block = gpu_->allocate({.bytes = kCount * sizeof(std::uint32_t)}).value();
  const Window window{.block = block, .bytes = block.bytes, .device = gpu_.get()};
  const Buffer output = numbers(gpu_);
  auto capture = CudaCapture::begin(queue_).value();
  ASSERT_TRUE(queue_->copy(input_.window().value(), window));
  ASSERT_TRUE(queue_->copy(window, output.window().value()));
  {
    CudaGraph graph = capture.end().value();
    ASSERT_TRUE(wait(graph.launch(*queue_).value()));
  }
  EXPECT_EQ(read(output), Numbers(kCount, 100));
  gpu_->release(block);
}

TEST_F(CudaGraphTest, UsesReleasedMemoryAgainInTheOrderCaptured) {
  auto capture = CudaCapture::begin(queue_).value();
  Buffer now = numbers(capture.memory());
  ASSERT_TRUE(add(*queue_, input_, now, 1));
  std::vector<std::uint64_t> addresses{now.native_handle()};
  for (int step = 0; step < 9; ++step) {
    Buffer next = numbers(capture.memory());
    ASSERT_TRUE(add(*queue_, now, next, 1));
    addresses.push_back(next.native_handle());
    now = std::move(next);
  }
  std::sort(addresses.begin(), addresses.end());
  EXPECT_EQ(std::unique(addresses.begin(), addresses.end()) - addresses.begin(), 2) << "two live at a time";
  CudaGraph graph = capture.end().value();
  EXPECT_EQ(graph.pool()->counters().live_blocks, 1u);
  EXPECT_EQ(graph.pool()->counters().slabs, 1u);
  for (int launch = 0; launch < 2; ++launch) ASSERT_TRUE(graph.launch(*queue_));
  EXPECT_EQ(read(now), Numbers(kCount, 110));
}

TEST_F(CudaGraphTest, KeepsBuffersAndKernelsThatItUses) {
  const std::size_t before = gpu_->counters().live_bytes;
  Buffer output = numbers(gpu_);
  {
    Buffer lost = numbers(gpu_);
    write(lost, 5);
    auto capture = CudaCapture::begin(queue_).value();
    Kernel kernel = std::exchange(add_, {});
    const std::uint32_t constant = 4;
    ASSERT_TRUE(queue_->launch(kernel,
                               std::array{KernelArgument{lost.window().value(), Access::kRead},
                                          KernelArgument{output.window().value(), Access::kWrite}},
                               {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
    CudaGraph graph = capture.end().value();
    kernel = {};
    lost = {};
    ASSERT_TRUE(graph.launch(*queue_));
    EXPECT_EQ(read(output), Numbers(kCount, 9));
  }
  output = {};
  ASSERT_TRUE(gpu_->synchronize());
  EXPECT_EQ(gpu_->counters().live_bytes, before) << "all of it goes with the graph";
}

TEST_F(CudaGraphTest, MemoryGoesWithTheLastGraphAndBuffer) {
  const std::size_t before = gpu_->counters().live_bytes;
  auto pool = make_cuda_graph_pool(gpu_).value();
  std::vector<CudaGraph> graphs;
  Buffer output;
  for (int i = 0; i < 2; ++i) {
    auto capture = CudaCapture::begin(queue_, {.pool = pool}).value();
    output = numbers(capture.memory());
    ASSERT_TRUE(add(*queue_, input_, output, 1));
    graphs.push_back(capture.end().value());
  }
  EXPECT_EQ(pool->counters().graphs, 2u);
  pool.reset();
  EXPECT_GT(gpu_->counters().live_bytes, before);
  graphs.pop_back();
  EXPECT_GT(gpu_->counters().live_bytes, before);
  ASSERT_TRUE(graphs[0].launch(*queue_));
  graphs.clear();
  EXPECT_GT(gpu_->counters().live_bytes, before) << "a buffer is left";
  output = {};
  EXPECT_EQ(gpu_->counters().live_bytes, before);
}

TEST_F(CudaGraphTest, GraphsOfOnePoolShareItsMemoryAndNeverOverlap) {
  const auto pool = make_cuda_graph_pool(gpu_).value();
  const Buffer one = numbers(gpu_), two = numbers(gpu_);
  const auto capture_into = [&](const Buffer& output, std::uint32_t constant) {
    auto capture = CudaCapture::begin(queue_, {.pool = pool}).value();
    // As large as a slab, so that sharing shows in the number of slabs.
    const Buffer large = Buffer::allocate(capture.memory(), u32, {std::size_t{700} << 10}).value();
    const Buffer hidden = large.view(0, u32, {kCount}).value();
    add(*queue_, input_, hidden, constant).value();
    add(*queue_, hidden, output, constant).value();
    return capture.end().value();
  };
  CudaGraph first = capture_into(one, 1);
  const std::size_t bytes = pool->counters().bytes;
  CudaGraph second = capture_into(two, 10);
  EXPECT_EQ(pool->counters().bytes, bytes) << "the second uses the memory of the first";
  // On two queues, without a wait: the double sees any overlap.
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(first.launch(*queue_));
    ASSERT_TRUE(second.launch(*side_));
  }
  EXPECT_EQ(read(one), Numbers(kCount, 102));
  EXPECT_EQ(read(two), Numbers(kCount, 120));
  auto capture = CudaCapture::begin(queue_, {.pool = pool}).value();
  EXPECT_TRUE(fails_with(CudaCapture::begin(side_, {.pool = pool}), Code::kInvalidUsage)) << "one capture at a time";
  EXPECT_TRUE(fails_with(CudaCapture::begin(queue_), Code::kInvalidUsage)) << "the queue captures already";
  ASSERT_TRUE(capture.end());
}

TEST_F(CudaGraphTest, WritesTheBytesOfTheCaptureAndZeroesAtEachLaunch) {
  auto capture = CudaCapture::begin(queue_).value();
  const Buffer written = numbers(capture.memory());
  const Buffer zeroed = Buffer::allocate(capture.memory(), u32, {kCount}, {.zero = true}).value();
  Numbers bytes(kCount, 77);
  ASSERT_TRUE(queue_->write(written.window().value(), std::as_bytes(std::span(bytes))));
  bytes.assign(kCount, 0);
  CudaGraph graph = capture.end().value();
  for (int launch = 0; launch < 2; ++launch) {
    write(written, 1);
    write(zeroed, 1);
    ASSERT_TRUE(graph.launch(*queue_));
    EXPECT_EQ(read(written), Numbers(kCount, 77));
    EXPECT_EQ(read(zeroed), Numbers(kCount, 0));
  }
}

TEST_F(CudaGraphTest, ForksToOtherQueuesAndJoinsThem) {
  auto capture = CudaCapture::begin(queue_).value();
  const Buffer left = numbers(capture.memory()), right = numbers(capture.memory()), output = numbers(capture.memory());
  EXPECT_TRUE(fails_with(capture.join(*side_), Code::kInvalidUsage)) << "not forked yet";
  EXPECT_TRUE(fails_with(capture.fork(queue_), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(capture.fork(nullptr), Code::kInvalidArgument));
  ASSERT_TRUE(capture.fork(side_));
  std::uint64_t dropped = 0;
  {
    const Buffer scratch = numbers(capture.memory());
    dropped = scratch.native_handle();
    ASSERT_TRUE(add(*side_, input_, scratch, 1));
    ASSERT_TRUE(add(*side_, scratch, right, 1));
  }
  const Buffer other = numbers(capture.memory());
  EXPECT_NE(other.native_handle(), dropped) << "the other queue may run later";
  ASSERT_TRUE(add(*queue_, input_, other, 10));
  ASSERT_TRUE(add(*queue_, other, left, 10));
  ASSERT_TRUE(capture.join(*side_));
  EXPECT_TRUE(fails_with(side_->fill(right.window().value(), 1), Code::kInvalidUsage)) << "joined";
  EXPECT_EQ(numbers(capture.memory()).native_handle(), dropped) << "free since the join";
  ASSERT_TRUE(capture.fork(side_));
  ASSERT_TRUE(add(*side_, right, output, 1));  // joined by end()
  CudaGraph graph = capture.end().value();
  ASSERT_TRUE(graph.launch(*side_));
  EXPECT_EQ(read(left), Numbers(kCount, 120));
  EXPECT_EQ(read(output), Numbers(kCount, 103));
}

TEST_F(CudaGraphTest, ADroppedCaptureLeavesTheQueueAsItWas) {
  const Buffer output = numbers(gpu_);
  write(output, 3);
  {
    auto capture = CudaCapture::begin(queue_).value();
    ASSERT_TRUE(capture.fork(side_));
    const Buffer hidden = numbers(capture.memory());
    ASSERT_TRUE(add(*side_, input_, hidden, 1));
    ASSERT_TRUE(add(*queue_, input_, output, 1));
  }
  EXPECT_EQ(read(output), Numbers(kCount, 3));
  ASSERT_TRUE(add(*queue_, input_, output, 2));
  ASSERT_TRUE(queue_->finish());
  ASSERT_TRUE(side_->finish());
  EXPECT_EQ(read(output), Numbers(kCount, 102));
}

TEST_F(CudaGraphTest, RefusesBeforeTheDriverWhatACaptureForbids) {
  const QueuePtr third = gpu_->make_queue().value();
  const auto cached = make_caching_pool(gpu_);
  const auto growable = make_growable(gpu_).value();
  const Buffer outside = numbers(gpu_), spare = numbers(gpu_);
  Buffer hit = numbers(cached);
  hit = {};
  write(outside, 1);
  ASSERT_TRUE(side_->fill(outside.window().value(), 0));
  const Timepoint elsewhere = side_->submit().value();

  auto capture = CudaCapture::begin(queue_).value();
  const Buffer hidden = numbers(capture.memory());
  ASSERT_TRUE(add(*queue_, input_, hidden, 1));
  Numbers target(kCount);
  const auto bytes = std::as_writable_bytes(std::span(target));
  EXPECT_TRUE(fails_with(queue_->submit(), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(queue_->finish(), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(queue_->wait_for(elsewhere), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(queue_->read(hidden.window().value(), bytes), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(wait(elsewhere), Code::kInvalidUsage)) << "a wait on this thread";
  EXPECT_TRUE(fails_with(hidden.copyout(bytes), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(outside.copyout(bytes), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(gpu_->synchronize(), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(Buffer::allocate(gpu_, u32, {kCount}), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(Buffer::allocate(gpu_, u32, {kCount}, {.host = HostAccess::kRequired}), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(Buffer::allocate(gpu_, u32, {kCount}, {.on = queue_->timeline()}), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(Buffer::allocate(cached, u32, {std::size_t{1} << 20}), Code::kInvalidUsage)) << "a miss";
  EXPECT_TRUE(Buffer::allocate(cached, u32, {kCount})) << "a hit needs no driver";
  EXPECT_TRUE(fails_with(Buffer::allocate(growable, u8, {1}), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(make_growable(gpu_), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(cuda_test::make_add_kernel(*gpu_), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(
      queue_->copy(input_.view(0, 512).value().window().value(), input_.view(100, 512).value().window().value()),
      Code::kUnsupported))
      << "an overlapping copy";
  EXPECT_TRUE(fails_with(third->wait_for(queue_->next()), Code::kInvalidArgument)) << "it is not submitted";
  EXPECT_EQ(gpu_->trim(0), 0u);
  {
    const QueuePtr passing = gpu_->make_queue().value();  // made and destroyed meanwhile
    ASSERT_TRUE(passing->fill(spare.window().value(), 3));
  }
  // None of that reached the driver: the capture is valid, and its graph runs.
  CudaGraph graph = capture.end().value();
  EXPECT_TRUE(fails_with(capture.end(), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(capture.fork(side_), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(capture.join(*side_), Code::kInvalidUsage));
  ASSERT_TRUE(graph.launch(*queue_));
  EXPECT_EQ(read(hidden), Numbers(kCount, 101));
}

TEST_F(CudaGraphTest, RefusesWhatIsNoUseToAGraph) {
  const DevicePtr cpu = device("CPU").value();
  EXPECT_TRUE(fails_with(make_cuda_graph_pool(cpu), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(make_cuda_graph_pool(nullptr), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(CudaCapture::begin(nullptr), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(CudaCapture::begin(cpu->make_queue().value()), Code::kInvalidArgument));
  const auto pool = make_cuda_graph_pool(gpu_).value();
  EXPECT_TRUE(fails_with(Buffer::allocate(pool, u32, {kCount}), Code::kInvalidUsage)) << "no capture";
  EXPECT_TRUE(Buffer::allocate(pool, u32, {0}));
  auto capture = CudaCapture::begin(queue_, {.pool = pool}).value();
  EXPECT_TRUE(fails_with(Buffer::allocate(pool, u8, {8}, {.host = HostAccess::kRequired}), Code::kUnsupported));
  EXPECT_TRUE(fails_with(Buffer::allocate(pool, u8, {8}, {.on = side_->timeline()}), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(pool->allocate({.bytes = 8, .alignment = 3}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(pool->allocate({.bytes = SIZE_MAX, .alignment = 4096}), Code::kOutOfMemory));
  EXPECT_TRUE(fails_with(pool->allocate({.bytes = gpu_->limits().total_bytes}), Code::kOutOfMemory));
  const Block strict = pool->allocate({.bytes = 100, .alignment = std::size_t{1} << 16}).value();
  EXPECT_EQ(strict.handle % (std::size_t{1} << 16), 0u);
  pool->release(strict);
  EXPECT_EQ(pool->counters().live_blocks, 0u);
  CudaGraph empty = capture.end().value();
  ASSERT_TRUE(empty.launch(*queue_)) << "a graph of nothing";
  EXPECT_TRUE(fails_with(empty.launch(*cpu->make_queue().value()), Code::kInvalidArgument));
  auto second = CudaCapture::begin(queue_).value();
  EXPECT_TRUE(fails_with(empty.launch(*queue_), Code::kInvalidUsage)) << "no graph in a graph";
  EXPECT_FALSE(to_string(pool->counters()).empty());
}

// Each of two captures at once on one thread keeps its own memory, and uses the other's as any other.
TEST_F(CudaGraphTest, TwoCapturesAtOnceStayApart) {
  for (const bool first_ends_first : {false, true}) {
    auto one = CudaCapture::begin(queue_).value();
    auto two = CudaCapture::begin(side_).value();
    EXPECT_TRUE(fails_with(one.fork(side_), Code::kInvalidUsage)) << "it captures the other graph";
    EXPECT_TRUE(fails_with(two.join(*queue_), Code::kInvalidUsage));
    const Buffer a = numbers(one.memory()), b = numbers(two.memory());
    ASSERT_TRUE(add(*queue_, input_, a, 1));
    ASSERT_TRUE(add(*side_, input_, b, 10));
    std::optional<CudaGraph> first, second;
    if (first_ends_first) first = one.end().value();
    second = two.end().value();
    if (!first_ends_first) {
      ASSERT_TRUE(add(*queue_, b, a, 5)) << "memory of the other pool";
      first = one.end().value();
    }
    ASSERT_TRUE(second->launch(*queue_));
    ASSERT_TRUE(first->launch(*queue_));
    EXPECT_EQ(read(b), Numbers(kCount, 110));
    EXPECT_EQ(read(a), Numbers(kCount, first_ends_first ? 101 : 115));
    second.reset();
    ASSERT_TRUE(first->launch(*queue_)) << "it keeps what it uses";
    EXPECT_EQ(read(a), Numbers(kCount, first_ends_first ? 101 : 115));
  }
}

// What a capture uses may be copied by others meanwhile: captured work does not run.
TEST_F(CudaGraphTest, LeavesBuffersThatItUsesToOtherThreads) {
  const Buffer output = numbers(gpu_), before = numbers(gpu_), beside = numbers(gpu_);
  ASSERT_TRUE(queue_->fill(before.window().value(), 0));  // recorded and not submitted
  ASSERT_TRUE(side_->fill(beside.window().value(), 0));
  auto capture = CudaCapture::begin(queue_).value();
  ASSERT_TRUE(capture.fork(side_));
  ASSERT_TRUE(add(*queue_, input_, output, 1));
  std::thread([&] {
    EXPECT_EQ(read(before), Numbers(kCount, 0));
    EXPECT_EQ(read(beside), Numbers(kCount, 0));
    const Numbers values(kCount, 7);
    EXPECT_TRUE(input_.copyin(std::as_bytes(std::span(values))));
    Numbers seen(kCount);
    EXPECT_TRUE(input_.copyout(std::as_writable_bytes(std::span(seen))));
    EXPECT_EQ(seen, values);
  }).join();
  CudaGraph graph = capture.end().value();
  ASSERT_TRUE(graph.launch(*queue_));
  EXPECT_EQ(read(output), Numbers(kCount, 8));
}

// A queue that a fork refused is none of the capture's: its recorded work is not submitted for it.
TEST_F(CudaGraphTest, TouchesNoQueueThatItDidNotForkTo) {
  const QueuePtr outside = gpu_->make_queue().value();
  const Buffer target = numbers(gpu_);
  {
    auto other = CudaCapture::begin(outside).value();
    auto capture = CudaCapture::begin(queue_).value();
    EXPECT_TRUE(fails_with(capture.fork(outside), Code::kInvalidUsage));
    ASSERT_TRUE(other.end());
    ASSERT_TRUE(outside->fill(target.window().value(), 1));
    const Timepoint recorded = outside->next();
    ASSERT_TRUE(capture.end());
    EXPECT_EQ(outside->next().value(), recorded.value()) << "not submitted";
  }
  ASSERT_TRUE(outside->finish());
}

TEST_F(CudaGraphTest, CountsAgainstTheBudget) {
  auto capture = CudaCapture::begin(queue_).value();
  gpu_->set_budget(gpu_->counters().live_bytes + (std::size_t{3} << 20));
  const auto fits = Buffer::allocate(capture.memory(), u8, {std::size_t{1} << 20});
  EXPECT_TRUE(fits);
  EXPECT_TRUE(fails_with(Buffer::allocate(capture.memory(), u8, {std::size_t{3} << 20}), Code::kOutOfMemory));
  gpu_->set_budget(0);
  EXPECT_TRUE(Buffer::allocate(capture.memory(), u8, {std::size_t{3} << 20}));
}

TEST_F(CudaGraphTest, EndsOnItsOwnThreadUnlessItIsRelaxed) {
  for (const auto mode : {CudaCaptureMode::kGlobal, CudaCaptureMode::kThreadLocal, CudaCaptureMode::kRelaxed}) {
    auto capture = CudaCapture::begin(queue_, {.mode = mode}).value();
    const Buffer hidden = numbers(capture.memory());
    ASSERT_TRUE(add(*queue_, input_, hidden, 1));
    std::thread([&] {
      auto ended = capture.end();
      if (mode != CudaCaptureMode::kRelaxed) {
        EXPECT_TRUE(fails_with(ended, Code::kInvalidUsage));
        return;
      }
      EXPECT_TRUE(ended);
      EXPECT_TRUE(ended->launch(*queue_));
    }).join();
    if (mode == CudaCaptureMode::kRelaxed) continue;
    CudaGraph graph = capture.end().value();
    ASSERT_TRUE(graph.launch(*queue_));
    EXPECT_EQ(read(hidden), Numbers(kCount, 101));
  }
}

TEST_F(CudaGraphTest, RestrictsOtherThreadsOnlyInTheGlobalMode) {
  for (const auto mode : {CudaCaptureMode::kGlobal, CudaCaptureMode::kThreadLocal}) {
    auto capture = CudaCapture::begin(queue_, {.mode = mode}).value();
    std::thread([&] {
      auto allocated = Buffer::allocate(gpu_, u32, {kCount});
      if (mode == CudaCaptureMode::kGlobal) {
        EXPECT_TRUE(fails_with(allocated, Code::kInvalidUsage));
        return;
      }
      ASSERT_TRUE(allocated);
      write(*allocated, 4);
      EXPECT_EQ(read(*allocated), Numbers(kCount, 4));
      const auto plain = Buffer::allocate(gpu_, u32, {kCount}, {.on = queue_->timeline()});
      EXPECT_TRUE(plain) << "not on the capturing stream";
    }).join();
    ASSERT_TRUE(capture.end());
  }
}

TEST_F(CudaGraphOnDouble, PutsOffFreesUntilTheCaptureEnds) {
  Buffer a = numbers(gpu_), b = Buffer::allocate(gpu_, u32, {kCount}, {.host = HostAccess::kRequired}).value();
  ASSERT_TRUE(queue_->fill(a.window().value(), 1));
  ASSERT_TRUE(queue_->fill(b.window().value(), 1));
  ASSERT_TRUE(queue_->submit());
  const std::size_t live = cuda_double().live_bytes(0);
  auto capture = CudaCapture::begin(queue_).value();
  a = {};
  b = {};
  EXPECT_EQ(cuda_double().live_bytes(0), live);
  ASSERT_TRUE(capture.end());
  ASSERT_TRUE(gpu_->synchronize());
  static_cast<void>(gpu_->trim(0));
  EXPECT_LT(cuda_double().live_bytes(0), live);
}

TEST_F(CudaGraphOnDouble, TellsThatOtherCodeInvalidatedTheCapture) {
  auto capture = CudaCapture::begin(queue_).value();
  ASSERT_TRUE(add(*queue_, input_, input_.view(0, 0).value(), 1) || true);
  auto broken = queue_->record_native(
      {}, [&](void*) -> Result<void> { return Error(Code::kDriver, Layer::kQueue, "recorded in part"); });
  EXPECT_TRUE(fails_with(broken, Code::kDriver));
  auto ended = capture.end();
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message().find("recorded in part"), std::string::npos);
  EXPECT_TRUE(CudaCapture::begin(queue_).value().end()) << "the queue can capture again";
}

TEST_F(CudaGraphOnDouble, ALaunchCostsOneDriverCallBesidesItsSubmit) {
  auto capture = CudaCapture::begin(queue_).value();
  const Buffer output = numbers(capture.memory());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(add(*queue_, input_, output, 1));
  CudaGraph graph = capture.end().value();
  ASSERT_TRUE(graph.launch(*queue_));
  ASSERT_TRUE(queue_->wait_submitted());
  cuda_double().clear_calls();
  ASSERT_TRUE(graph.launch(*queue_));
  EXPECT_EQ(cuda_double().calls("cuGraphLaunch"), 1u);
  EXPECT_EQ(cuda_double().calls("cuEventRecord"), 1u);
  EXPECT_EQ(cuda_double().calls("cuLaunchKernel"), 0u);
  EXPECT_EQ(cuda_double().calls(nullptr), 2u + cuda_double().calls("cuCtxGetCurrent"));
}

// Random programs over buffers of the pool and of the device, with drops and forks, against a run on the host. The
// double sees every address that is shared too early and every missing order.
TEST_F(CudaGraphOnDouble, ReplaysRandomProgramsAsASequentialRunWould) {
  for (const std::uint32_t seed : test::seeds(30)) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    struct Value {
      Buffer buffer;
      std::size_t id;
    };
    struct Step {
      std::size_t from, to;
      std::uint32_t constant;
    };
    std::vector<Value> live;
    std::vector<Step> program;
    std::size_t ids = 1;  // 0 is the input
    const auto pool = make_cuda_graph_pool(gpu_).value();
    std::vector<CudaGraph> graphs;
    for (int round = 0; round < 2; ++round) {
      program.clear();
      live.clear();
      auto capture = CudaCapture::begin(queue_, {.pool = pool}).value();
      bool forked = false;
      std::vector<bool> of_side(1000, false);  // made since the fork, by which queue
      std::size_t since = ids;
      for (int step = 0; step < 40; ++step) {
        switch (below(6)) {
          case 0:
            if (live.size() > 1) live.erase(live.begin() + static_cast<std::ptrdiff_t>(below(live.size())));
            break;
          case 1:
            if (!forked) {
              ASSERT_TRUE(capture.fork(side_));
              since = ids;
            } else {
              ASSERT_TRUE(capture.join(*side_));
            }
            forked = !forked;
            break;
          default: {
            const bool side = forked && below(2) == 0;
            // While forked, a queue reads what was there before, or what it made itself.
            std::vector<const Value*> sources;
            for (const Value& value : live)
              if (!forked || value.id < since || of_side[value.id] == side) sources.push_back(&value);
            const std::size_t from = sources.empty() ? 0 : below(sources.size() + 1);
            Queue& on = side ? *side_ : *queue_;
            Value made{Buffer::allocate(below(4) == 0 ? AllocatorPtr(gpu_) : AllocatorPtr(capture.memory()), u32,
                                        {kCount}, {.on = on.timeline()})
                           .value_or(Buffer()),
                       ids++};
            if (!made.buffer.is_allocated())  // the device refuses during a capture
              made.buffer =
                  Buffer::allocate(capture.memory(), u32, {kCount + below(5000)}, {.on = on.timeline()}).value();
            of_side[made.id] = side;
            const auto constant = static_cast<std::uint32_t>(below(1000));
            const Buffer& source = from == 0 ? input_ : sources[from - 1]->buffer;
            program.push_back({from == 0 ? 0 : sources[from - 1]->id, made.id, constant});
            ASSERT_TRUE(add(on, source, made.buffer, constant));
            live.push_back(std::move(made));
          }
        }
      }
      graphs.push_back(capture.end().value());
      for (int launch = 0; launch < 3; ++launch) {
        const auto value = static_cast<std::uint32_t>(below(1000));
        write(input_, value);
        if (round == 1 && below(2) == 0) {
          ASSERT_TRUE(graphs[0].launch(*side_));
        }
        ASSERT_TRUE(graphs.back().launch(below(2) == 0 ? *queue_ : *side_));
        std::vector<std::uint32_t> model(ids);
        model[0] = value;
        for (const Step& step : program) model[step.to] = model[step.from] + step.constant;
        for (const Value& each : live)
          ASSERT_EQ(read(each.buffer.view(0, u32, {kCount}).value()), Numbers(kCount, model[each.id]));
      }
    }
    for (const std::string& text : cuda_test::cuda_violations()) FAIL() << text;
  }
}

}  // namespace
}  // namespace berth
