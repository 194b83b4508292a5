// Schedules on queues: the order that results from waits, how few of them there are, and what a run leaves in memory.
#include "berth/run/queue_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

#include "berth/berth.h"
#include "doubles/cuda/cuda_testing.h"
#include "doubles/lagging_device.h"
#include "support/queue_graphs.h"
#include "support/support.h"

namespace berth {
namespace {

using test::bytes_of;
using test::check_random_graphs;
using test::copy;
using test::fails_with;
using test::fill;
using test::kWindow;
using test::make_queues;
using test::random_steps;
using test::RandomStep;
using test::run_in_order;
using test::schedule_of;
using test::window_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(QueueSchedule, KeepsAChainOnOneQueueAndWaitsForNothing) {
  const DevicePtr cpu = device("CPU").value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {64}).value();
  ScheduleBuilder builder;
  for (std::uint8_t i = 0; i < 10; ++i) builder.add_step(fill(buffer, i));
  auto on_queues = QueueSchedule::make(builder.build().value(), make_queues(cpu, 2)).value();
  EXPECT_EQ(on_queues.wait_count(), 0u);
  for (StepId step = 0; step < 10; ++step) EXPECT_EQ(on_queues.queue_of(step), on_queues.queue_of(0));
  ASSERT_TRUE(wait(on_queues.run().value()));
  EXPECT_EQ(bytes_of(buffer), std::vector<std::byte>(64, std::byte{9}));
}

TEST(QueueSchedule, SpreadsIndependentStepsAndJoinsThemWithOneWaitEach) {
  const DevicePtr cpu = device("CPU").value();
  const Buffer a = Buffer::allocate(cpu, u8, {64}).value(), b = Buffer::allocate(cpu, u8, {64}).value(),
               c = Buffer::allocate(cpu, u8, {64}).value();
  ScheduleBuilder builder;
  const StepId one = builder.add_step(fill(a, 1)), two = builder.add_step(fill(b, 2)),
               three = builder.add_step(fill(c, 3));
  const StepId join =
      builder.add_step({.reads = {a, b, c}, .record = [](const StepRecord&) { return Result<void>(); }});
  const auto on_queues = QueueSchedule::make(builder.build().value(), make_queues(cpu, 3)).value();
  EXPECT_THAT((std::vector{on_queues.queue_of(one), on_queues.queue_of(two), on_queues.queue_of(three)}),
              ElementsAre(0u, 1u, 2u));
  EXPECT_EQ(on_queues.waits_of(join).size(), 2u);
  EXPECT_EQ(on_queues.wait_count(), 2u);
}

TEST(QueueSchedule, LeavesOutWaitsThatOtherWaitsImply) {
  const DevicePtr cpu = device("CPU").value();
  const Buffer a = Buffer::allocate(cpu, u8, {64}).value(), b = Buffer::allocate(cpu, u8, {64}).value();
  ScheduleBuilder builder;
  // 0 on queue 0; 1 on queue 1 reads 0; 2 on queue 2 reads both: it needs to wait for 1 alone.
  const StepId first = builder.add_step(fill(a, 1));
  const StepId second = builder.add_step(copy(a, b));
  const StepId third = builder.add_step({.reads = {a, b}, .record = [](const StepRecord&) { return Result<void>(); }});
  const StepId again =
      builder.add_step({.reads = {a}, .after = {third}, .record = [](const StepRecord&) { return Result<void>(); }});
  const auto rule = [](const QueueChoice& choice) { return std::min<std::uint32_t>(choice.step, 2); };
  const auto on_queues = QueueSchedule::make(builder.build().value(), make_queues(cpu, 3), {.rule = rule}).value();
  EXPECT_THAT(on_queues.waits_of(second), ElementsAre(first));
  EXPECT_THAT(on_queues.waits_of(third), ElementsAre(second));
  EXPECT_THAT(on_queues.waits_of(again), IsEmpty()) << "its queue has waited already";
}

TEST(QueueSchedule, ReturnsATimepointOfAllQueuesWithoutWaiting) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto one = lagging->lagging_queue(), two = lagging->lagging_queue();
  const Buffer a = Buffer::allocate(lagging, u8, {64}).value(), b = Buffer::allocate(lagging, u8, {64}).value();
  ScheduleBuilder builder;
  builder.add_step(fill(a, 1));
  builder.add_step(fill(b, 2));
  auto on_queues = QueueSchedule::make(builder.build().value(), {one, two}).value();
  EXPECT_NE(on_queues.queue_of(0), on_queues.queue_of(1));
  const Timepoint done = on_queues.run().value();
  EXPECT_FALSE(is_reached(done));
  one->reach_all();
  two->reach_all();
  EXPECT_TRUE(is_reached(done));
}

TEST(QueueSchedule, WaitsOnTheHostForWhatAHostFunctionReads) {
  const DevicePtr cpu = device("CPU").value();
  const Buffer a = Buffer::allocate(cpu, u8, {64}).value(), b = Buffer::allocate(cpu, u8, {64}).value();
  std::byte seen{};
  ScheduleBuilder builder;
  builder.add_step(fill(a, 7));
  builder.add_step({.reads = {a}, .writes = {b}, .run = [&](const StepRun&) -> Result<void> {
                      seen = a.as_host_bytes().value()[5];
                      return b.copyin(std::vector<std::byte>(64, std::byte{9}));
                    }});
  builder.add_step(copy(b, a));
  auto on_queues = QueueSchedule::make(builder.build().value(), make_queues(cpu, 2)).value();
  ASSERT_TRUE(wait(on_queues.run().value()));
  EXPECT_EQ(seen, std::byte{7});
  EXPECT_EQ(bytes_of(a)[0], std::byte{9});
}

TEST(QueueSchedule, NamesTheStepThatFailsAndCanRunAgain) {
  const DevicePtr cpu = device("CPU").value();
  const Buffer a = Buffer::allocate(cpu, u8, {64}).value();
  bool fails = true;
  ScheduleBuilder builder;
  builder.add_step(fill(a, 1));
  builder.add_step({.label = "breaks", .writes = {a}, .record = [&](const StepRecord&) -> Result<void> {
                      if (fails) throw std::runtime_error("on purpose");
                      return {};
                    }});
  builder.add_step(fill(a, 3));
  auto on_queues = QueueSchedule::make(builder.build().value(), make_queues(cpu, 2)).value();
  const auto failed = on_queues.run();
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("breaks"));
  EXPECT_THAT(failed.error().message(), HasSubstr("on purpose"));
  EXPECT_EQ(on_queues.schedule().state_of(0), StepState::kDone);
  EXPECT_EQ(on_queues.schedule().state_of(1), StepState::kFailed);
  EXPECT_EQ(on_queues.schedule().state_of(2), StepState::kNotRun);
  EXPECT_EQ(bytes_of(a)[0], std::byte{1});
  fails = false;
  ASSERT_TRUE(wait(on_queues.run().value()));
  EXPECT_EQ(bytes_of(a)[0], std::byte{3});
}

TEST(QueueSchedule, RefusesQueuesThatCannotServeItsSteps) {
  const DevicePtr cpu = device("CPU").value();
  const auto lagging = doubles::LaggingDevice::make();
  const auto schedule = [&] {
    ScheduleBuilder builder;
    builder.add_step(fill(Buffer::allocate(lagging, u8, {64}).value(), 1));
    return builder.build().value();
  };
  EXPECT_TRUE(fails_with(QueueSchedule::make(schedule(), {}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(QueueSchedule::make(schedule(), {nullptr}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(QueueSchedule::make(schedule(), make_queues(cpu, 2)), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(
      QueueSchedule::make(schedule(), make_queues(lagging, 2), {.rule = [](const QueueChoice&) { return 2u; }}),
      Code::kInvalidArgument));
  ScheduleBuilder builder;
  const Node node = builder.add_node({.bytes = 64});
  builder.add_step({.writes = {node}});
  EXPECT_TRUE(fails_with(QueueSchedule::make(builder.build().value(), make_queues(cpu, 1)), Code::kNotAllocated));
}

TEST(QueueSchedule, SendsAStepToAQueueOfTheDeviceThatItWrites) {
  const DevicePtr cpu = device("CPU").value();
  const auto lagging = doubles::LaggingDevice::make();
  const Buffer here = Buffer::allocate(cpu, u8, {64}).value(), there = Buffer::allocate(lagging, u8, {64}).value();
  ScheduleBuilder builder;
  const StepId on_cpu = builder.add_step(fill(here, 1)), on_lagging = builder.add_step(fill(there, 1));
  const StepId both = builder.add_step(
      {.reads = {here}, .writes = {there}, .record = [](const StepRecord&) { return Result<void>(); }});
  const auto on_queues =
      QueueSchedule::make(builder.build().value(), {cpu->make_queue().value(), lagging->make_queue().value()}).value();
  EXPECT_EQ(on_queues.queue_of(on_cpu), 0u);
  EXPECT_EQ(on_queues.queue_of(on_lagging), 1u);
  EXPECT_EQ(on_queues.queue_of(both), 1u);
  EXPECT_THAT(on_queues.waits_of(both), ElementsAre(on_cpu));
}

// --- Random graphs ---

TEST(QueueSchedule, LeavesWhatASequentialRunLeavesOnCpu) {
  check_random_graphs(device("CPU").value(), 60);
}

TEST(QueueSchedule, LeavesWhatASequentialRunLeavesOnCuda) {
  const cuda_test::CudaChoice choice;
  check_random_graphs(device("CUDA").value(), 40);
  if (cuda_test::on_real_gpu()) return;
  for (const std::string& text : cuda_test::cuda_violations()) ADD_FAILURE() << text;
}

TEST(QueueSchedule, LeavesWhatASequentialRunLeavesOnWebgpu) {
  const auto webgpu = device("WEBGPU");
  if (!webgpu) GTEST_SKIP() << webgpu.error().message();
  check_random_graphs(*webgpu, 10);
}

// Buffers of two GPUs that are copied to each other, and host functions between: waits of queues for queues of another
// device, and of the host for both.
TEST(QueueSchedule, LeavesWhatASequentialRunLeavesAcrossDevices) {
  if (cuda_test::on_real_gpu()) GTEST_SKIP() << "needs two devices";
  const cuda_test::CudaChoice choice;
  {
    const DevicePtr devices[] = {device("CUDA:0").value(), device("CUDA:1").value()};
    for (const std::uint32_t seed : test::seeds(40)) {
      SCOPED_TRACE(seed);
      std::mt19937 random(seed);
      std::vector<Buffer> buffers;
      for (std::size_t i = 0; i < 6; ++i)
        buffers.push_back(Buffer::allocate(devices[i % 2], u8, {kWindow}, {.zero = true}).value());
      std::vector<std::uint8_t> model(buffers.size());
      ScheduleBuilder builder;
      std::vector<std::function<void()>> steps;  // the same on the model
      for (int i = 0; i < 40; ++i) {
        const std::size_t from = random() % buffers.size();
        const std::size_t to = (from + 1 + random() % (buffers.size() - 1)) % buffers.size();
        switch (random() % 4) {
          case 0:
            builder.add_step(fill(buffers[to], static_cast<std::uint8_t>(i)));
            steps.emplace_back([&model, to, i] { model[to] = static_cast<std::uint8_t>(i); });
            break;
          case 1:
            builder.add_step({.label = "host",
                              .reads = {buffers[from]},
                              .writes = {buffers[to]},
                              .run = [source = buffers[from], target = buffers[to]](const StepRun&) -> Result<void> {
                                auto bytes = bytes_of(source);
                                for (std::byte& each : bytes)
                                  each = static_cast<std::byte>(std::to_integer<int>(each) + 3);
                                return target.copyin(bytes);
                              }});
            steps.emplace_back([&model, from, to] { model[to] = static_cast<std::uint8_t>(model[from] + 3); });
            break;
          default:
            builder.add_step(copy(buffers[from], buffers[to]));
            steps.emplace_back([&model, from, to] { model[to] = model[from]; });
        }
      }
      std::vector<QueuePtr> queues;
      for (std::size_t i = 0; i < 2 + random() % 4; ++i) queues.push_back(devices[i % 2]->make_queue().value());
      auto on_queues = QueueSchedule::make(builder.build().value(), queues).value();
      for (int run = 0; run < 2; ++run) {
        const auto ran = on_queues.run();
        ASSERT_TRUE(ran) << ran.error().message();
        for (const auto& step : steps) step();
      }
      for (std::size_t i = 0; i < buffers.size(); ++i)
        EXPECT_EQ(bytes_of(buffers[i]), std::vector<std::byte>(kWindow, std::byte{model[i]})) << i;
    }
  }
  cuda_test::expect_nothing_left();
}

TEST(QueueSchedule, HoldsThePlanOfAnArenaOnSeveralQueues) {
  const cuda_test::CudaChoice choice;
  {
    const DevicePtr cuda = device("CUDA").value();
    for (std::uint32_t seed = 1; seed <= 10; ++seed) {
      std::mt19937 random(seed);
      const Buffer result = Buffer::allocate(cuda, u8, {256}).value();
      ScheduleBuilder builder;
      // Chains of nodes: each is filled, copied on, and its last one ends in the result.
      std::vector<Node> nodes;
      std::vector<std::uint8_t> expected;
      for (std::size_t chain = 0; chain < 4; ++chain) {
        const auto value = static_cast<std::uint8_t>(random());
        Node last = builder.add_node({.bytes = 64});
        builder.add_step({.writes = {last}, .record = [=](const StepRecord& run) {
                            return run.queue.fill(window_of(run.node(last)), value);
                          }});
        for (std::size_t i = random() % 6; i > 0; --i) {
          const Node next = builder.add_node({.bytes = 64});
          builder.add_step({.reads = {last}, .writes = {next}, .record = [=](const StepRecord& run) {
                              return run.queue.copy(window_of(run.node(last)), window_of(run.node(next)));
                            }});
          last = next;
        }
        const Buffer part = result.view(chain * 64, 64).value();
        builder.add_step({.reads = {last}, .writes = {part}, .record = [=](const StepRecord& run) {
                            return run.queue.copy(window_of(run.node(last)), window_of(part));
                          }});
        expected.insert(expected.end(), 64, value);
      }
      const Schedule open = builder.build().value();
      const MemoryPlan found = plan({.lifetimes = lifetimes_from_schedule(open)}).value();
      const Arena arena = Arena::from_plan(cuda, found).value();
      auto on_queues = QueueSchedule::make(open.bind(arena).value(), make_queues(cuda, 3)).value();
      ASSERT_TRUE(wait(on_queues.run().value()));
      const auto bytes = bytes_of(result);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin(),
                             [](std::byte a, std::uint8_t b) { return a == std::byte{b}; }))
          << "seed " << seed;
    }
  }
  if (cuda_test::on_real_gpu()) return;
  for (const std::string& text : cuda_test::cuda_violations()) ADD_FAILURE() << text;
}

// Which steps are over before which, given the order on queues and the waits, except one wait.
class Reach {
 public:
  Reach(const QueueSchedule& on_queues, std::optional<std::pair<StepId, StepId>> without)
      : count_(on_queues.schedule().step_count()), before_(count_ * count_) {
    std::vector<StepId> last(16, ~StepId{0});
    for (const StepId step : on_queues.order()) {
      StepId& newest = last[on_queues.queue_of(step)];
      if (newest != ~StepId{0}) add(newest, step);
      newest = step;
      for (const StepId other : on_queues.waits_of(step))
        if (!without || *without != std::pair(other, step)) add(other, step);
    }
  }
  bool operator()(StepId first, StepId second) const { return before_[first * count_ + second]; }

 private:
  void add(StepId first, StepId second) {
    before_[first * count_ + second] = true;
    for (StepId other = 0; other < count_; ++other)
      if (before_[other * count_ + first]) before_[other * count_ + second] = true;
  }
  std::size_t count_;
  std::vector<bool> before_;
};

RC_GTEST_PROP(QueueScheduleProperty, OrdersEveryDependencyAndNeedsEveryWait, ()) {
  const DevicePtr cpu = device("CPU").value();
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const std::size_t windows = *rc::gen::inRange<std::size_t>(3, 12), queues = *rc::gen::inRange<std::size_t>(1, 6);
  const auto steps = random_steps(seed, *rc::gen::inRange<std::size_t>(0, 30), windows);
  const Buffer buffer = Buffer::allocate(cpu, u8, {windows * kWindow}).value();
  std::mt19937 random(seed);
  QueueScheduleOptions options;
  if (*rc::gen::arbitrary<bool>())
    options.rule = [&](const QueueChoice& choice) { return choice.allowed[random() % choice.allowed.size()]; };
  const auto on_queues = QueueSchedule::make(schedule_of(steps, buffer), make_queues(cpu, queues), options).value();

  const auto missing = [&](const Reach& reach) {
    for (StepId step = 0; step < steps.size(); ++step)
      for (const StepId before : on_queues.schedule().dependencies_of(step))
        if (!reach(before, step)) return true;
    return false;
  };
  RC_ASSERT(!missing(Reach(on_queues, std::nullopt)));
  std::size_t waits = 0;
  for (StepId step = 0; step < steps.size(); ++step)
    for (const StepId other : on_queues.waits_of(step)) {
      ++waits;
      RC_ASSERT(on_queues.queue_of(other) != on_queues.queue_of(step));
      RC_ASSERT(missing(Reach(on_queues, std::pair(other, step))));
    }
  RC_ASSERT(on_queues.wait_count() == waits);
}

}  // namespace
}  // namespace berth
