// Planning again, measured: problems of several families whose sizes change while the order of events stays, and
// problems that gain and lose a few nodes. Fresh in every run, from the seed that is printed; every other case is of
// the half of the seeds that no rule was chosen with.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "berth/plan/incremental_plan.h"
#include "berth/plan/plan.h"
#include "berth/plan/replan.h"
#include "plan_families.h"
#include "support/plan_families.h"

namespace berth::bench {

// Seconds of this thread's processor time: what else runs on the machine does not count.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The bytes of another shape. Either each node grows with the shape, some with its square and some not at all, or each
// changes by itself by up to a quarter.
inline PlanProblem resized(PlanProblem problem, bool by_shape, std::uint64_t seed) {
  std::mt19937_64 random(scatter(seed));
  const double scale = 0.5 + 2.0 * unit(random);
  for (Lifetime& it : problem.lifetimes) {
    const std::uint64_t kind = random() % 10;
    const double grown = kind == 0 ? 1.0 : kind == 1 ? scale * scale : scale;
    const double factor = by_shape ? grown : 0.75 + 0.5 * unit(random);
    it.bytes = 64 * (1 + static_cast<std::uint64_t>(factor * static_cast<double>(it.bytes) / 64));
  }
  problem.capacity.reset();
  return problem;
}

// A few nodes less and a few more, of sizes and lengths as others have them.
inline std::vector<IncrementalPlan::Change> exchange(const PlanProblem& problem, std::size_t count,
                                                     std::uint64_t seed) {
  std::mt19937_64 random(scatter(seed + 1));
  std::vector<IncrementalPlan::Change> changes;
  const std::size_t nodes = problem.lifetimes.size();
  const auto any = [&] {  // one that is there, if it is found soon
    std::size_t node = random() % nodes;
    for (int i = 0; i < 100 && problem.lifetimes[node].bytes == 0; ++i) node = random() % nodes;
    return node;
  };
  for (std::size_t i = 0; i < count; ++i) {
    changes.push_back({static_cast<std::uint32_t>(any()), {}});
    const Lifetime &like = problem.lifetimes[any()], &when = problem.lifetimes[any()];
    changes.push_back({static_cast<std::uint32_t>(nodes + i),
                       {.bytes = like.bytes, .first = when.first, .last = when.first + (like.last - like.first)}});
  }
  return changes;
}

inline PlanProblem applied(PlanProblem problem, const std::vector<IncrementalPlan::Change>& changes) {
  for (const IncrementalPlan::Change& change : changes) {
    if (change.node == problem.lifetimes.size()) problem.lifetimes.emplace_back();
    problem.lifetimes[change.node] = change.lifetime;
  }
  return problem;
}

struct ReplanFamily {
  std::string name;
  std::function<PlanProblem(std::uint64_t)> draw;
};

inline std::vector<ReplanFamily> replan_families(const std::string& folder) {
  std::vector<ReplanFamily> list = {
      {"training step", [](std::uint64_t seed) { return training_step(400, seed); }},
      {"branches", [](std::uint64_t seed) { return branches(400, seed); }},
      {"workspaces", [](std::uint64_t seed) { return workspaces(400, seed); }},
      {"compiled graph", [](std::uint64_t seed) { return compiled_graph(300, seed); }},
      {"guillotine", [](std::uint64_t seed) { return cut_tiling(400, 0.02, 0.0, seed); }},
  };
  std::vector<PlanProblem> known;
  for (const char* name : {"A", "C", "D", "F", "H", "J"}) {
    if (auto problem = read_problem(fmt::format("{}/{}.1048576.csv", folder, name))) known.push_back(*problem);
  }
  if (!known.empty()) {
    list.push_back({"perturbed public instances",
                    [=](std::uint64_t seed) { return perturbed(known[scatter(seed) % known.size()], seed); }});
  }
  return list;
}

using RowPrinter = std::function<void(const std::string&, const std::string&, const std::string&, bool)>;

inline void refuse_invalid(const PlanProblem& problem, const MemoryPlan& made, std::uint64_t seed) {
  if (const Violation violation = validate(problem, made)) {
    fmt::print("INVALID PLAN: {} (seed {})\n", describe(violation, problem, made), seed);
    std::exit(1);
  }
}

// The plan that offsets make, as the validator wants it.
inline MemoryPlan plan_of(const PlanProblem& problem, const std::vector<std::uint64_t>& offsets,
                          const Replanner::Placement& placed) {
  MemoryPlan made;
  for (std::size_t i = 0; i < offsets.size(); ++i) made.slots.push_back({offsets[i], problem.lifetimes[i].bytes, 0});
  made.blocks.push_back({placed.size, 0, 0});
  made.size = placed.size;
  made.lower_bound = placed.lower_bound;
  made.optimal = made.size == made.lower_bound;
  made.fingerprint = fingerprint(problem);
  return made;
}

// All sizes changed: a Replanner that knows one plan, and one that has also rehearsed, against a full plan.
inline void resized_rows(const FamilyOptions& options, std::size_t count, const RowPrinter& row) {
  constexpr std::size_t kRehearsals = 12;
  struct Sum {
    double worst = 0, ratio = 0, slowest = 0, time = 0;
    std::size_t near = 0;
  };
  for (const ReplanFamily& family : replan_families(options.folder)) {
    Sum sums[2];
    double rehearsing = 0;
    std::size_t nodes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      FamilyOptions one = options;
      one.count = i / 2 + 1;
      one.half = i % 2 == 0 ? Half::kDevelopment : Half::kHeldOut;
      const std::uint64_t seed = draw_seeds({family.name, {}, 0, 0, 0, {}}, one).back();
      PlanProblem problem = family.draw(seed);
      problem.capacity.reset();
      Replanner again = Replanner::make(problem, plan(problem, {.work_limit = 100'000, .threads = 1}).value()).value();
      const PlanProblem changed = resized(problem, i % 4 < 2, seed);
      const MemoryPlan full = plan(changed, {.work_limit = 100'000, .threads = 1}).value();
      std::vector<std::uint64_t> bytes, offsets(changed.lifetimes.size());
      for (const Lifetime& it : changed.lifetimes) bytes.push_back(it.bytes);
      nodes = std::max(nodes, bytes.size());
      for (const bool rehearsed : {false, true}) {
        if (rehearsed) {
          const double begin = thread_seconds();
          again.rehearse(problem, kRehearsals, {.work_limit = 20'000, .threads = 1}).value();
          rehearsing += thread_seconds() - begin;
        }
        Replanner::Placement placed;
        double fastest = 1e9;
        for (int repeat = 0; repeat < 20; ++repeat) {
          const double begin = thread_seconds();
          placed = again.place(bytes, offsets).value();
          fastest = std::min(fastest, thread_seconds() - begin);
        }
        refuse_invalid(changed, plan_of(changed, offsets, placed), seed);
        const double ratio = static_cast<double>(placed.size) / static_cast<double>(full.size);
        if (options.each) {
          fmt::print("  {} {} seed {:016x} n {}{} {:.4f} of a full plan, {:.4f} of the bound, {:.0f} us\n", family.name,
                     i % 4 < 2 ? "by shape" : "each", seed, bytes.size(), rehearsed ? " rehearsed" : "", ratio,
                     static_cast<double>(placed.size) / static_cast<double>(placed.lower_bound), 1e6 * fastest);
        }
        Sum& sum = sums[rehearsed ? 1 : 0];
        sum.worst = std::max(sum.worst, ratio);
        sum.ratio += ratio;
        sum.slowest = std::max(sum.slowest, fastest);
        sum.time += fastest;
        sum.near += ratio <= 1.01 ? 1 : 0;
      }
    }
    const auto all = static_cast<double>(count);
    for (const bool rehearsed : {false, true}) {
      const Sum& sum = sums[rehearsed ? 1 : 0];
      std::string figures =
          fmt::format("{} of {} within 1 %, mean {:.4f}, worst {:.4f}, mean {:.0f}, slowest {:.0f} us, to {} nodes",
                      sum.near, count, sum.ratio / all, sum.worst, 1e6 * sum.time / all, 1e6 * sum.slowest, nodes);
      if (rehearsed) figures += fmt::format(", rehearsing {:.0f} ms", 1e3 * rehearsing / all);
      row("other sizes, " + family.name + (rehearsed ? ", rehearsed" : ""), figures, "1 % of a full plan, 200 us",
          sum.near == count && sum.slowest <= 200e-6);
    }
  }
}

// A few nodes came and as many went: an IncrementalPlan and replan() against a full plan, and how many of the others
// stay where they were.
inline void changed_rows(const FamilyOptions& options, std::size_t count, const RowPrinter& row) {
  struct Sum {
    double worst = 0, time = 0, kept = 0;
    std::size_t near = 0;
  };
  const std::vector<ReplanFamily> families = replan_families(options.folder);
  for (const std::size_t difference : {1, 4, 16}) {
    Sum sums[2];
    double full_time = 0, others = 0;
    std::size_t again = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const ReplanFamily& family = families[i % families.size()];
      const std::uint64_t seed = scatter(options.seed + 1000 * difference + i);
      PlanProblem problem = family.draw(seed);
      problem.capacity.reset();
      const MemoryPlan known = plan(problem, {.work_limit = 100'000, .threads = 1}).value();
      const std::vector<IncrementalPlan::Change> changes = exchange(problem, difference, seed);
      const PlanProblem changed = applied(problem, changes);
      double begin = thread_seconds();
      const MemoryPlan full = plan(changed, {.work_limit = 100'000, .threads = 1}).value();
      full_time += thread_seconds() - begin;
      for (std::size_t n = 0; n < problem.lifetimes.size(); ++n) others += changed.lifetimes[n].bytes == 0 ? 0 : 1;
      for (const bool incremental : {true, false}) {
        double fastest = 1e9;
        MemoryPlan made;
        bool planned_again = false;
        for (int repeat = 0; repeat < 5; ++repeat) {
          IncrementalPlan follows = IncrementalPlan::make(problem, known).value();
          begin = thread_seconds();
          if (incremental) {
            planned_again = follows.change(changes).value().planned_again;
          } else {
            made = replan(changed, known).value();
          }
          fastest = std::min(fastest, thread_seconds() - begin);
          if (incremental) made = follows.memory_plan();
        }
        refuse_invalid(changed, made, seed);
        Sum& sum = sums[incremental ? 0 : 1];
        const double ratio = static_cast<double>(made.size) / static_cast<double>(full.size);
        again += planned_again ? 1 : 0;
        sum.worst = std::max(sum.worst, ratio);
        sum.near += ratio <= 1.01 ? 1 : 0;
        sum.time += fastest;
        for (std::size_t n = 0; n < problem.lifetimes.size(); ++n) {
          if (changed.lifetimes[n].bytes > 0) sum.kept += made.slots[n].offset == known.slots[n].offset ? 1 : 0;
        }
        if (options.each) {
          fmt::print(
              "  {} {} {} seed {:016x} n {} {:.4f} of a full plan, known {:.4f}, full {:.4f}, made {:.4f}, {:.0f} "
              "us{}\n",
              difference, incremental ? "incremental" : "replan", family.name, seed, problem.lifetimes.size(), ratio,
              1 + known.gap(), 1 + full.gap(), 1 + made.gap(), 1e6 * fastest, planned_again ? ", planned again" : "");
        }
      }
    }
    const auto all = static_cast<double>(count);
    for (const bool incremental : {true, false}) {
      const Sum& sum = sums[incremental ? 0 : 1];
      std::string figures =
          fmt::format("{} of {} within 1 %, worst {:.4f}, {:.0f} % stay, {:.0f} us, full plan {:.0f} us", sum.near,
                      count, sum.worst, 100 * sum.kept / others, 1e6 * sum.time / all, 1e6 * full_time / all);
      if (incremental) figures += fmt::format(", {} planned again", again);
      row(fmt::format("{} gone, {} new, {}", difference, difference, incremental ? "incremental" : "replan()"), figures,
          "1 % of a full plan", sum.near == count);
    }
  }
}

// Twenty changes in turn of few and many nodes of small and large problems: how long one takes, with those that plan
// again, and what the plan is like after the last.
inline void following_rows(const FamilyOptions& options, const RowPrinter& row) {
  for (const std::size_t nodes : {400, 4000, 40'000}) {
    struct Made {
      std::string name;
      PlanProblem problem;
      MemoryPlan known;
    };
    std::vector<Made> made;
    const auto add = [&](const char* name, PlanProblem problem) {
      problem.capacity.reset();
      MemoryPlan known = plan(problem, {.work_limit = 100'000, .threads = 1}).value();
      made.push_back({name, std::move(problem), std::move(known)});
    };
    const std::uint64_t seed = scatter(options.seed + nodes);
    add("training step", training_step(nodes, seed));
    add("branches", branches(nodes, seed));
    add("workspaces", workspaces(nodes, seed));
    add("compiled graph", compiled_graph(nodes * 3 / 4, seed));
    double first = 0;
    for (const std::size_t difference : {1, 4, 16, 64}) {
      double sum = 0, median = 0, worst = 0, moved = 0;
      std::size_t again = 0;
      for (const Made& it : made) {
        IncrementalPlan follows = IncrementalPlan::make(it.problem, it.known).value();
        std::vector<double> times;
        for (std::uint64_t i = 0; i < 20; ++i) {
          const std::vector<IncrementalPlan::Change> changes =
              exchange(follows.problem(), difference, seed + 100 * difference + i);
          const double begin = thread_seconds();
          const IncrementalPlan::Outcome outcome = follows.change(changes).value();
          times.push_back(thread_seconds() - begin);
          moved += static_cast<double>(outcome.moved.size()) / 20;
          again += outcome.planned_again ? 1 : 0;
        }
        refuse_invalid(follows.problem(), follows.memory_plan(), seed);
        const MemoryPlan full = plan(follows.problem(), {.work_limit = 100'000, .threads = 1}).value();
        std::sort(times.begin(), times.end());
        const double ratio = static_cast<double>(follows.size()) / static_cast<double>(full.size);
        if (options.each) {
          fmt::print("  {} of {} {}: median {:.1f} us, slowest {:.1f}, known {:.5f}, {:.5f} of a full plan\n",
                     difference, it.problem.lifetimes.size(), it.name, 1e6 * times[10], 1e6 * times.back(),
                     1 + it.known.gap(), ratio);
        }
        const auto problems = static_cast<double>(made.size());
        median += times[times.size() / 2] / problems;
        for (const double time : times) sum += time / 20 / problems;
        worst = std::max(worst, ratio);
      }
      if (difference == 1) first = sum;
      row(fmt::format("{} of {} exchanged, 20 times", difference, nodes),
          fmt::format(
              "median {:.1f}, mean {:.1f} us, {:.0f} moved, worst {:.4f} of a full plan, {} of {} planned again",
              1e6 * median, 1e6 * sum, moved / static_cast<double>(made.size()), worst, again, 20 * made.size()),
          "1 %, mean in proportion", worst <= 1.01 && sum <= first * static_cast<double>(difference));
    }
  }
}

}  // namespace berth::bench
