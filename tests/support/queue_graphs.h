// Random steps on queues, compared with the same steps one after another: what QueueSchedule promises on every device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "berth/run/queue_schedule.h"
#include "berth/tensor/buffer.h"
#include "support/seed.h"

namespace berth::test {

inline std::vector<QueuePtr> make_queues(const DevicePtr& device, std::size_t count) {
  std::vector<QueuePtr> queues;
  for (std::size_t i = 0; i < count; ++i) queues.push_back(device->make_queue().value());
  return queues;
}

inline Window window_of(const Buffer& buffer) {
  return buffer.window().value();
}

// A step that fills a buffer.
inline Step fill(const Buffer& target, std::uint8_t value) {
  return {.label = "fill", .writes = {target}, .record = [=](const StepRecord& run) {
            return run.queue.fill(window_of(target), value);
          }};
}

inline Step copy(const Buffer& source, const Buffer& target) {
  return {.label = "copy", .reads = {source}, .writes = {target}, .record = [=](const StepRecord& run) {
            return run.queue.copy(window_of(source), window_of(target));
          }};
}

inline std::vector<std::byte> bytes_of(const Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  EXPECT_TRUE(buffer.copyout(bytes));
  return bytes;
}

struct RandomStep {
  std::size_t source = 0, target = 0;  // 64-byte windows of one buffer; a fill if they are equal
  std::size_t length = 1;              // windows
};

inline std::vector<RandomStep> random_steps(std::uint32_t seed, std::size_t count, std::size_t windows) {
  std::mt19937 random(seed);
  std::vector<RandomStep> steps(count);
  for (RandomStep& step : steps) {
    step.length = 1 + random() % 3;
    step.source = random() % (windows - step.length + 1);
    step.target = random() % (windows - step.length + 1);
    const std::size_t gap = step.source < step.target ? step.target - step.source : step.source - step.target;
    if (gap < step.length) step.source = step.target;  // no overlapping copies
  }
  return steps;
}

inline constexpr std::size_t kWindow = 64;

inline Schedule schedule_of(const std::vector<RandomStep>& steps, const Buffer& buffer) {
  ScheduleBuilder builder;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Buffer source = buffer.view(steps[i].source * kWindow, steps[i].length * kWindow).value();
    const Buffer target = buffer.view(steps[i].target * kWindow, steps[i].length * kWindow).value();
    if (steps[i].source == steps[i].target)
      builder.add_step(fill(target, static_cast<std::uint8_t>(i + 1)));
    else
      builder.add_step(copy(source, target));
  }
  return builder.build().value();
}

inline std::vector<std::byte> run_in_order(const std::vector<RandomStep>& steps, std::size_t windows, int runs) {
  std::vector<std::byte> bytes(windows * kWindow);
  for (int run = 0; run < runs; ++run)
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto at = [&](std::size_t window) { return bytes.begin() + static_cast<std::ptrdiff_t>(window * kWindow); };
      const auto length = static_cast<std::ptrdiff_t>(steps[i].length * kWindow);
      if (steps[i].source == steps[i].target)
        std::fill_n(at(steps[i].target), length, static_cast<std::byte>(i + 1));
      else
        std::copy_n(at(steps[i].source), length, at(steps[i].target));
    }
  return bytes;
}

// Runs random steps on random queues of a device, twice in a row, and compares with the steps one after another.
inline void check_random_graphs(const DevicePtr& device, std::size_t rounds) {
  for (const std::uint32_t seed : seeds(rounds)) {
    const std::size_t windows = 4 + seed % 9, queues = 1 + seed % 4;
    const auto steps = random_steps(seed, 40, windows);
    const Buffer buffer = Buffer::allocate(device, u8, {windows * kWindow}, {.zero = true}).value();
    QueueScheduleOptions options;
    std::mt19937 random(seed);
    if (seed % 2 == 0)
      options.rule = [&](const QueueChoice& choice) { return choice.allowed[random() % choice.allowed.size()]; };
    auto on_queues = QueueSchedule::make(schedule_of(steps, buffer), make_queues(device, queues), options).value();
    Timepoint done;
    for (int run = 0; run < 2; ++run) {
      const auto ran = on_queues.run();
      ASSERT_TRUE(ran) << ran.error().message();
      done = *ran;
    }
    ASSERT_TRUE(wait(done));
    EXPECT_EQ(bytes_of(buffer), run_in_order(steps, windows, 2)) << "seed " << seed;
  }
}

}  // namespace berth::test
