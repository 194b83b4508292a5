// What a schedule costs for each step, beside a oneTBB flow graph of continue_nodes built by hand for the same steps
// and the same dependencies; what building one costs; and f16 conversion beside memcpy. Steps do nothing, so all the
// time is overhead. Run it alone: `schedule_bench [seconds for each figure]`.
#include <fmt/format.h>
#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "berth/memory/registry.h"
#include "berth/run/queue_schedule.h"
#include "berth/run/schedule.h"
#include "berth/tensor/f16.h"
#include "run/hazards.h"
#include "tensor/f16_paths.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_each = 0.3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Times {
  double best = 1e9, median = 0;
};

// Runs both in turn, so that noise from outside falls on both.
std::pair<Times, Times> compare(const std::function<void()>& one, const std::function<void()>& other) {
  std::vector<double> a, b;
  for (int i = 0; i < 3; ++i) one(), other();
  const auto start = Clock::now();
  while (seconds_since(start) < 2 * seconds_each || a.size() < 15) {
    auto from = Clock::now();
    one();
    a.push_back(seconds_since(from));
    from = Clock::now();
    other();
    b.push_back(seconds_since(from));
  }
  const auto times = [](std::vector<double>& list) {
    std::sort(list.begin(), list.end());
    return Times{list.front(), list[list.size() / 2]};
  };
  return {times(a), times(b)};
}

struct Shape {
  std::string name;
  std::size_t steps;
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // from a lower to a higher step
};

Shape chain(std::size_t n) {
  Shape shape{"chain", n, {}};
  for (std::size_t i = 1; i < n; ++i) shape.edges.push_back({i - 1, i});
  return shape;
}

Shape fan(std::size_t n) {
  Shape shape{"one to all to one", n, {}};
  for (std::size_t i = 1; i + 1 < n; ++i) shape.edges.insert(shape.edges.end(), {{0, i}, {i, n - 1}});
  return shape;
}

Shape wavefront(std::size_t side) {
  Shape shape{"wavefront", side * side, {}};
  for (std::size_t r = 0; r < side; ++r)
    for (std::size_t c = 0; c < side; ++c) {
      if (r > 0) shape.edges.push_back({(r - 1) * side + c, r * side + c});
      if (c > 0) shape.edges.push_back({r * side + c - 1, r * side + c});
    }
  return shape;
}

Shape layered(std::size_t layers, std::size_t width) {
  Shape shape{"layers, 3 inputs each", layers * width, {}};
  std::mt19937 random(1);
  for (std::size_t layer = 1; layer < layers; ++layer)
    for (std::size_t i = 0; i < width; ++i) {
      std::vector<std::size_t> before(width);
      for (std::size_t k = 0; k < width; ++k) before[k] = k;
      std::shuffle(before.begin(), before.end(), random);
      for (std::size_t k = 0; k < std::min<std::size_t>(3, width); ++k)
        shape.edges.push_back({(layer - 1) * width + before[k], layer * width + i});
    }
  return shape;
}

Shape apart(std::size_t n) {
  return {"independent", n, {}};
}

berth::Schedule make_schedule(const Shape& shape, std::size_t& sink) {
  std::vector<std::vector<std::size_t>> reads(shape.steps);
  for (const auto& [from, to] : shape.edges) reads[to].push_back(from);
  // A byte for each step: it writes its own and reads those of the steps before it.
  const berth::Buffer bytes =
      berth::Buffer::allocate(berth::device("CPU").value(), berth::u8, {std::max<std::size_t>(1, shape.steps)}).value();
  berth::ScheduleBuilder builder;
  for (std::size_t i = 0; i < shape.steps; ++i) {
    berth::Step step{.writes = {bytes.view(i, 1).value()}};
    for (const std::size_t read : reads[i]) step.reads.push_back(bytes.view(read, 1).value());
    step.run = [&sink, i](const berth::StepRun&) -> berth::Result<void> {
      if (i == 0) ++sink;
      return {};
    };
    builder.add_step(std::move(step));
  }
  return builder.build().value();
}

struct FlowGraph {
  using Node = tbb::flow::continue_node<tbb::flow::continue_msg>;
  tbb::flow::graph graph;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Node*> sources;

  FlowGraph(const Shape& shape, std::size_t& sink) {
    std::vector<bool> has_input(shape.steps, false);
    for (std::size_t i = 0; i < shape.steps; ++i)
      nodes.push_back(std::make_unique<Node>(graph, [&sink, i](const tbb::flow::continue_msg&) {
        if (i == 0) ++sink;
      }));
    for (const auto& [from, to] : shape.edges) {
      tbb::flow::make_edge(*nodes[from], *nodes[to]);
      has_input[to] = true;
    }
    for (std::size_t i = 0; i < shape.steps; ++i)
      if (!has_input[i]) sources.push_back(nodes[i].get());
  }
  void run() {
    for (Node* source : sources) source->try_put(tbb::flow::continue_msg());
    graph.wait_for_all();
  }
};

bool compare_overhead() {
  bool no_higher = true;
  fmt::print("overhead for each step, ns (best / median of many runs, taken in turn)\n");
  fmt::print("{:<24}{:>8}{:>8}{:>7}   {:>17}   {:>17}   {:>6}\n", "steps", "count", "edges", "workers",
             "Berth schedule", "TBB flow graph", "ratio");
  for (const Shape& shape : {chain(10000), apart(10000), fan(10000), wavefront(100), layered(500, 20)})
    for (const std::uint32_t workers : {1u, 2u}) {
      std::size_t sink = 0;
      const berth::Schedule schedule = make_schedule(shape, sink);
      // Each in an arena of as many threads, so that both have the same.
      tbb::task_arena arena(static_cast<int>(workers));
      std::unique_ptr<FlowGraph> flow;
      arena.execute([&] { flow = std::make_unique<FlowGraph>(shape, sink); });
      const auto [ours, theirs] =
          compare([&] { schedule.run({.workers = workers}).value(); }, [&] { arena.execute([&] { flow->run(); }); });
      const double scale = 1e9 / static_cast<double>(shape.steps);
      fmt::print("{:<24}{:>8}{:>8}{:>7}   {:>7.1f} / {:>7.1f}   {:>7.1f} / {:>7.1f}   {:>5.2f}x\n", shape.name,
                 shape.steps, schedule.edge_count(), workers, ours.best * scale, ours.median * scale,
                 theirs.best * scale, theirs.median * scale, theirs.median / ours.median);
      no_higher = no_higher && ours.median <= theirs.median;
      arena.execute([&] { flow.reset(); });
    }
  fmt::print("overhead no higher than the flow graph's: {}\n\n", no_higher ? "yes, on every row" : "NO");
  return no_higher;
}

void measure_building() {
  fmt::print("building: finding dependencies of n accesses to one storage\n");
  fmt::print("{:<34}{:>10}{:>12}{:>14}{:>12}\n", "accesses", "n", "ns each", "edges each", "joins each");
  const auto row = [](const char* name, const std::vector<berth::internal::Touch>& touches) {
    std::vector<std::uint32_t> first(touches.size() + 1), order(touches.size());
    for (std::uint32_t i = 0; i <= touches.size(); ++i) first[i] = i;
    for (std::uint32_t i = 0; i < touches.size(); ++i) order[i] = i;
    const auto n = static_cast<double>(touches.size());
    double best = 1e9;
    berth::internal::Hazards hazards;
    for (int i = 0; i < (touches.size() < 1'000'000 ? 3 : 1); ++i) {
      const auto start = Clock::now();
      hazards = berth::internal::find_hazards(touches, first, order, {});
      best = std::min(best, seconds_since(start));
    }
    fmt::print("{:<34}{:>10}{:>12.0f}{:>14.2f}{:>12.2f}\n", name, touches.size(), best * 1e9 / n,
               static_cast<double>(hazards.edges.size()) / n,
               static_cast<double>(hazards.node_count - touches.size()) / n);
  };
  for (const std::size_t n : {10'000u, 100'000u, 1'000'000u}) {
    std::mt19937_64 random(1);
    std::vector<berth::internal::Touch> windows(n), pieces(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t begin = random() % (n * 16);
      windows[i] = {.storage = 1, .begin = begin, .end = begin + 1 + random() % (n * 4), .writes = random() % 2 == 0};
      // Half write a piece each, then half read everything.
      const std::uint64_t piece = i * 16;
      pieces[i] = i < n / 2 ? berth::internal::Touch{.storage = 1, .begin = piece, .end = piece + 16, .writes = true}
                            : berth::internal::Touch{.storage = 1, .begin = 0, .end = n * 8};
    }
    row("random windows, half of them writes", windows);
    row("n/2 pieces written, n/2 read all", pieces);
  }
  fmt::print("\n");
}

void measure_f16() {
  fmt::print("f16 conversion, GB/s of bytes read and written (one thread); uses {}\n", berth::f16_instructions());
  fmt::print("{:<16}{:>12}{:>12}{:>12}{:>12}\n", "floats", "path", "f32 to f16", "f16 to f32", "memcpy");
  for (const std::size_t count : {std::size_t{1} << 13, std::size_t{1} << 18, std::size_t{1} << 24}) {
    std::vector<float> floats(count, 1.5f);
    std::vector<berth::F16> halves(count);
    // memcpy of as many bytes in and out together: three bytes for each way.
    std::vector<std::byte> from(count * 3), to(count * 3);
    const double bytes = 6.0 * static_cast<double>(count);
    const auto repeat = std::max<std::size_t>(1, (std::size_t{1} << 20) / count);
    for (const berth::internal::F16Path& path : berth::internal::f16_paths()) {
      const auto [narrow, copy] = compare(
          [&] {
            for (std::size_t i = 0; i < repeat; ++i) path.narrow(floats.data(), halves.data(), count);
          },
          [&] {
            for (std::size_t i = 0; i < repeat; ++i) {
              std::memcpy(to.data(), from.data(), from.size());
              asm volatile("" ::"r"(to.data()) : "memory");
            }
          });
      const auto [widen, again] = compare(
          [&] {
            for (std::size_t i = 0; i < repeat; ++i) path.widen(halves.data(), floats.data(), count);
          },
          [] {});
      const double scale = bytes * static_cast<double>(repeat) / 1e9;
      fmt::print("{:<16}{:>12}{:>12.1f}{:>12.1f}{:>12.1f}\n", count, path.name, scale / narrow.best, scale / widen.best,
                 scale / copy.best);
    }
  }
}

// A chain of 1,000 small steps that alternate between two queues of the CPU, so that each waits for the one before it,
// beside the same calls to the queues written by hand.
void measure_queues() {
  constexpr std::uint32_t kSteps = 1000;
  const berth::DevicePtr cpu = berth::device("CPU").value();
  const berth::Buffer buffer = berth::Buffer::allocate(cpu, berth::u8, {64}).value();
  const berth::Window window = buffer.window().value();
  const std::vector<berth::QueuePtr> queues = {cpu->make_queue().value(), cpu->make_queue().value()};
  berth::ScheduleBuilder builder;
  for (std::uint32_t i = 0; i < kSteps; ++i)
    builder.add_step({.writes = {buffer}, .record = [&](const berth::StepRecord& run) {
                        return run.queue.fill(window, static_cast<std::uint8_t>(run.step));
                      }});
  auto on_queues = berth::QueueSchedule::make(builder.build().value(), queues,
                                              {.rule = [](const berth::QueueChoice& c) { return c.step % 2; }})
                       .value();
  const auto [ours, by_hand] = compare([&] { static_cast<void>(on_queues.run().value()); },
                                       [&] {
                                         berth::Timepoint last;
                                         for (std::uint32_t i = 0; i < kSteps; ++i) {
                                           berth::Queue& queue = *queues[i % 2];
                                           queue.wait_for(last).value();
                                           queue.fill(window, static_cast<std::uint8_t>(i)).value();
                                           last = queue.submit().value();
                                         }
                                       });
  const double ns = 1e9 / kSteps;
  fmt::print(
      "\na chain of 1,000 steps over two queues of the CPU, {} waits\n"
      "  schedule {:.0f} ns a step, by hand {:.0f} ns: {:.0f} ns more (goal: less than 1,000)\n",
      on_queues.wait_count(), ours.best * ns, by_hand.best * ns, (ours.best - by_hand.best) * ns);
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // rows as they come, also into a file
  if (count > 1) seconds_each = std::atof(arguments[1]);
  fmt::print("{} cores\n\n", std::thread::hardware_concurrency());
  const bool no_higher = compare_overhead();
  measure_building();
  measure_queues();
  measure_f16();
  return no_higher ? 0 : 1;
}
