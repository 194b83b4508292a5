// Order and placement together, on graphs of the kinds that papers on execution orders measure, drawn anew in every run
// from the seed that is printed. Each line is a family: how much less memory than the order as emitted with greedy
// placement by size (what TFLite and ExecuTorch do) and with tinygrad's allocator, whether the two separate steps
// (order.h, then plan.h) would have done as well, and how many of the results are proven for every order. The figures
// of papers are theirs, on their networks; they stand beside for scale.
//
//   graph_bench [--count N] [--seed N] [--only NAME] [--each] [--large N]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "berth/alloc/offset_allocator.h"
#include "berth/plan/order.h"
#include "berth/plan/plan_graph.h"
#include "support/graph_families.h"

namespace berth::bench {
namespace {

struct Settings {
  std::size_t count = 8;
  std::uint64_t seed = 0;
  std::size_t large = 10'000;
  std::string only;
  bool each = false;
};

struct Family {
  std::string name;
  std::function<MemoryGraph(std::uint64_t)> draw;
};

std::vector<Family> families() {
  return {
      {"RandWire", randwire_graph},
      {"NASNet-A cells", [](std::uint64_t seed) { return nasnet_graph(seed); }},
      {"NASNet search space", [](std::uint64_t seed) { return nasnet_graph(seed, true); }},
      {"DARTS", darts_graph},
      {"ResNet", resnet_graph},
      {"DenseNet", densenet_graph},
      {"U-Net", unet_graph},
      {"transformer", transformer_graph},
      {"ResNet training", [](std::uint64_t seed) { return training_graph(resnet_graph(seed), seed); }},
      {"U-Net training", [](std::uint64_t seed) { return training_graph(unet_graph(seed), seed); }},
      {"transformer training", [](std::uint64_t seed) { return training_graph(transformer_graph(seed), seed); }},
  };
}

void check(const MemoryGraph& graph, const GraphPlan& made) {
  const GraphViolation broken = validate(graph, made);
  if (!broken) return;
  fmt::print("INVALID PLAN: {} at {}\n", to_string(broken.rule), broken.at);
  std::exit(1);
}

struct Sums {
  std::size_t drawn = 0, proven = 0, small = 0, small_proven = 0, above = 0, steps = 0;
  double tflite = 0, tinygrad = 0, separate = 0;  // sums of logarithms of size over ours
  double peak = 0;                                // of the live peak of the emitted order over ours
  double seconds = 0, slowest = 0, gap = 0;
};

// Lifetimes of the graph in the order in which its steps are listed, through the public functions alone.
PlanProblem problem_in_order(const MemoryGraph& graph) {
  PlanProblem problem;
  problem.alignment = graph.alignment;
  const auto end = static_cast<std::int64_t>(graph.steps.size());
  std::vector<std::int64_t> last(graph.values.size(), 0), first(graph.values.size(), 0);
  for (std::int64_t at = 0; at < end; ++at) {
    for (const std::uint32_t value : graph.steps[static_cast<std::size_t>(at)].writes) first[value] = at;
    for (const std::uint32_t value : graph.steps[static_cast<std::size_t>(at)].reads) last[value] = at + 1;
  }
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    Lifetime life;
    life.bytes = graph.values[i].bytes;
    life.first = first[i];
    life.last = graph.values[i].keep || last[i] == 0 ? end : last[i];
    problem.lifetimes.push_back(life);
  }
  for (std::int64_t at = 0; at < end; ++at) {
    const GraphStep& step = graph.steps[static_cast<std::size_t>(at)];
    for (const InPlace& pair : step.in_place)
      if (problem.lifetimes[pair.read].last == at + 1) problem.lifetimes[pair.write].reuse_in_place = pair.read;
    if (step.scratch == 0) continue;
    Lifetime life;
    life.bytes = step.scratch;
    life.first = at;
    life.last = at + 1;
    problem.lifetimes.push_back(life);
  }
  return problem;
}

// What tinygrad does: two-level segregated fit, as values come and go.
std::uint64_t segregated_fit(const PlanProblem& problem) {
  std::vector<std::pair<std::int64_t, std::size_t>> begins, ends;
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    begins.emplace_back(problem.lifetimes[i].first, i);
    ends.emplace_back(problem.lifetimes[i].last, i);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  OffsetAllocator heap = OffsetAllocator::make(std::uint64_t{1} << 40, problem.alignment).value();
  std::vector<std::uint64_t> offset(problem.lifetimes.size());
  std::uint64_t top = 0;
  std::size_t gone = 0;
  for (const auto& [level, i] : begins) {
    for (; gone < ends.size() && ends[gone].first <= level; ++gone) heap.release(offset[ends[gone].second]).value();
    offset[i] = heap.allocate(problem.lifetimes[i].bytes).value();
    top = std::max(top, offset[i] + problem.lifetimes[i].bytes);
  }
  return top;
}

// The same graph with its steps listed in another order.
MemoryGraph reordered(const MemoryGraph& graph, const std::vector<std::uint32_t>& order) {
  MemoryGraph out = graph;
  out.steps.clear();
  for (const std::uint32_t step : order) out.steps.push_back(graph.steps[step]);
  return out;
}

OrderGraph order_graph(const MemoryGraph& graph) {
  OrderGraph out;
  out.nodes.resize(graph.steps.size());
  std::vector<std::uint32_t> writer(graph.values.size(), kNoNode);
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step) {
    out.nodes[step].scratch = graph.steps[step].scratch;
    for (const std::uint32_t value : graph.steps[step].writes) {
      writer[value] = step;
      out.nodes[step].bytes += graph.values[value].bytes;
    }
  }
  for (std::uint32_t step = 0; step < graph.steps.size(); ++step)
    for (const std::uint32_t value : graph.steps[step].reads)
      if (writer[value] != kNoNode) out.edges.push_back({writer[value], step});
  return out;
}

void measure(const MemoryGraph& graph, std::uint64_t seed, const Settings& settings, Sums& sums) {
  const PlanOptions options{.work_limit = 200'000, .threads = 2};
  const GraphPlan made = plan_graph(graph, {.plan = options}).value();
  check(graph, made);
  const PlanProblem emitted = problem_in_order(graph);
  const double ours = static_cast<double>(made.size);
  const double tflite = static_cast<double>(plan_with("size_first_fit", emitted)->size) / ours;
  const double tinygrad = static_cast<double>(segregated_fit(emitted)) / ours;
  const std::uint64_t given = plan(emitted, options)->size;
  const MemoryOrder order = order_for_memory(order_graph(graph)).value();
  const std::uint64_t ordered = plan(problem_in_order(reordered(graph, order.order)), options)->size;
  const std::uint64_t separate = std::min(given, ordered);
  ++sums.drawn;
  sums.steps += graph.steps.size();
  sums.proven += made.optimal ? 1 : 0;
  if (graph.steps.size() < 300) {
    ++sums.small;
    sums.small_proven += made.optimal ? 1 : 0;
  }
  sums.above += made.size > separate ? 1 : 0;
  sums.tflite += std::log(tflite);
  sums.tinygrad += std::log(tinygrad);
  sums.separate += std::log(static_cast<double>(separate) / ours);
  sums.peak += std::log(static_cast<double>(made.given_peak) / static_cast<double>(made.peak));
  sums.seconds += made.seconds;
  sums.slowest = std::max(sums.slowest, made.seconds);
  sums.gap = std::max(sums.gap, made.gap());
  if (settings.each)
    fmt::print(
        "  seed {:<20} {:>5} steps  {:>12} bytes, bound {:>12} {}  peak {}  emitted {:.3f}  separate {:.3f}  {:.2f} "
        "s\n",
        seed, graph.steps.size(), made.size, made.lower_bound, made.optimal ? "proven" : "      ", made.peak, tflite,
        static_cast<double>(separate) / ours, made.seconds);
}

void family_lines(const Settings& settings) {
  fmt::print("{:<22} {:>6} {:>13} {:>13} {:>13} {:>14} {:>10} {:>9} {:>8}\n", "geometric means", "steps",
             "emitted order,", "tinygrad", "emitted peak", "order.h, then", "proven", "worst gap", "slowest");
  fmt::print("{:<22} {:>6} {:>13} {:>13} {:>13} {:>14}\n", "(times ours)", "", "by size", "", "of live bytes",
             "plan.h");
  std::size_t small = 0, small_proven = 0, above = 0, drawn = 0;
  for (const Family& family : families()) {
    if (family.name.rfind(settings.only, 0) != 0) continue;
    Sums sums;
    std::mt19937_64 seeds(settings.seed);
    for (std::size_t i = 0; i < settings.count; ++i) {
      const std::uint64_t seed = seeds();
      measure(family.draw(seed), seed, settings, sums);
    }
    const double count = static_cast<double>(sums.drawn);
    const auto mean = [&](double sum) { return std::exp(sum / count); };
    fmt::print("{:<22} {:>6} {:>13.3f} {:>13.3f} {:>13.3f} {:>14.3f} {:>10} {:>8.2f}% {:>6.2f} s\n", family.name,
               sums.steps / sums.drawn, mean(sums.tflite), mean(sums.tinygrad), mean(sums.peak), mean(sums.separate),
               fmt::format("{} of {}", sums.proven, sums.drawn), 100 * sums.gap, sums.slowest);
    std::fflush(stdout);
    small += sums.small;
    small_proven += sums.small_proven;
    above += sums.above;
    drawn += sums.drawn;
  }
  fmt::print("\nproven below 300 steps: {} of {}\n", small_proven, small);
  fmt::print("above the better of the separate steps: {} of {}\n", above, drawn);
  fmt::print(
      "published, on their own networks: SERENITY 1.68 times less than TFLite (cells); HMCOS 8.7 to 42.4 % less; "
      "MODeL 30 % less than PyTorch;\nROAM 35.7 % less than PyTorch (training)\n");
}

void large_line(const Settings& settings) {
  // Networks in a row until there are enough steps: no cut is given away, because each reads the first value as well.
  std::mt19937_64 seeds(settings.seed + 1);
  for (const bool training : {false, true}) {
    NetBuilder net(seeds());
    NetBuilder::Value x = net.step({net.input(1 << 16)}, 1 << 16);
    const std::size_t steps = training ? settings.large / 3 : settings.large;
    std::vector<NetBuilder::Value> recent = {x};
    while (net.graph().steps.size() < steps) {
      std::vector<NetBuilder::Value> reads = {recent.back()};
      for (std::uint64_t more = net.between(0, 2); more > 0; --more)
        reads.push_back(recent[recent.size() - 1 - net.between(0, std::min<std::uint64_t>(recent.size() - 1, 20))]);
      std::sort(reads.begin(), reads.end());
      reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
      recent.push_back(net.step(std::move(reads), net.between(1, 64) * 1024));
    }
    MemoryGraph graph = net.take();
    if (training) graph = training_graph(std::move(graph), settings.seed);
    const GraphPlan made = plan_graph(graph, {.plan = {.time_limit = 5.0}}).value();
    check(graph, made);
    fmt::print("{:>6} steps{}: {:.4f} of the bound, peak of the emitted order {:.3f} times ours, {:.2f} s\n",
               graph.steps.size(), training ? ", a training step" : "", 1 + made.gap(),
               static_cast<double>(made.given_peak) / static_cast<double>(made.peak), made.seconds);
  }
}

}  // namespace
}  // namespace berth::bench

int main(int argc, char** argv) {
  berth::bench::Settings settings;
  settings.seed = std::random_device()();
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const bool has_value = i + 1 < argc;
    if (option == "--each") {
      settings.each = true;
    } else if (option == "--only" && has_value) {
      settings.only = argv[++i];
    } else if (option == "--count" && has_value) {
      settings.count = std::max(1ul, std::strtoul(argv[++i], nullptr, 10));
    } else if (option == "--seed" && has_value) {
      settings.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (option == "--large" && has_value) {
      settings.large = std::strtoul(argv[++i], nullptr, 10);
    } else {
      fmt::print(stderr, "graph_bench: {} is not an option; see the top of its source\n", option);
      return 2;
    }
  }
  fmt::print("fresh graphs, drawn from seed {}: {} of each family\n\n", settings.seed, settings.count);
  berth::bench::family_lines(settings);
  if (settings.large > 0) berth::bench::large_line(settings);
  return 0;
}
