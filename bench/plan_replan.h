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
inline PlanProblem exchanged(PlanProblem problem, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(scatter(seed + 1));
  problem.capacity.reset();
  const std::size_t nodes = problem.lifetimes.size();
  for (std::size_t i = 0; i < count; ++i) {
    problem.lifetimes[random() % nodes].bytes = 0;
    const Lifetime like = problem.lifetimes[random() % nodes], when = problem.lifetimes[random() % nodes];
    if (like.bytes == 0) continue;
    problem.lifetimes.push_back(
        {.bytes = like.bytes, .first = when.first, .last = when.first + (like.last - like.first)});
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

// All sizes changed: a Replanner against a full plan.
inline void resized_rows(const FamilyOptions& options, std::size_t count, const RowPrinter& row) {
  for (const ReplanFamily& family : replan_families(options.folder)) {
    double worst = 0, sum = 0, slowest = 0, time = 0;
    std::size_t near = 0, drawn = 0, nodes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      FamilyOptions one = options;
      one.count = i / 2 + 1;
      one.half = i % 2 == 0 ? Half::kDevelopment : Half::kHeldOut;
      const std::uint64_t seed = draw_seeds({family.name, {}, 0, 0, 0, {}}, one).back();
      PlanProblem problem = family.draw(seed);
      problem.capacity.reset();
      Replanner again = Replanner::make(problem, plan(problem, {.work_limit = 100'000, .threads = 1}).value()).value();
      const PlanProblem changed = resized(problem, i % 4 < 2, seed);
      std::vector<std::uint64_t> bytes, offsets(changed.lifetimes.size());
      for (const Lifetime& it : changed.lifetimes) bytes.push_back(it.bytes);
      Replanner::Placement placed;
      double fastest = 1e9;
      for (int repeat = 0; repeat < 20; ++repeat) {
        const double begin = thread_seconds();
        placed = again.place(bytes, offsets).value();
        fastest = std::min(fastest, thread_seconds() - begin);
      }
      refuse_invalid(changed, plan_of(changed, offsets, placed), seed);
      const MemoryPlan full = plan(changed, {.work_limit = 100'000, .threads = 1}).value();
      const double ratio = static_cast<double>(placed.size) / static_cast<double>(full.size);
      if (options.each) {
        fmt::print("  {} {} seed {:016x} n {} {:.4f} of a full plan, {:.4f} of the bound, {:.0f} us\n", family.name,
                   i % 4 < 2 ? "by shape" : "each", seed, bytes.size(), ratio,
                   static_cast<double>(placed.size) / static_cast<double>(placed.lower_bound), 1e6 * fastest);
      }
      worst = std::max(worst, ratio);
      sum += ratio;
      slowest = std::max(slowest, fastest);
      time += fastest;
      near += ratio <= 1.01 ? 1 : 0;
      nodes = std::max(nodes, bytes.size());
      ++drawn;
    }
    const auto all = static_cast<double>(drawn);
    row("other sizes, " + family.name,
        fmt::format("{} of {} within 1 %, mean {:.4f}, worst {:.4f}, mean {:.0f}, slowest {:.0f} us, to {} nodes", near,
                    drawn, sum / all, worst, 1e6 * time / all, 1e6 * slowest, nodes),
        "1 % of a full plan, 200 us", near == drawn && slowest <= 200e-6);
  }
}

// A few nodes came and as many went: replan() against a full plan, and how many of the others stay where they were.
inline void changed_rows(const FamilyOptions& options, std::size_t count, const RowPrinter& row) {
  for (const std::size_t difference : {1, 4, 16}) {
    double worst = 0, time = 0, full_time = 0, kept = 0, others = 0;
    std::size_t near = 0, drawn = 0;
    const std::vector<ReplanFamily> families = replan_families(options.folder);
    for (std::size_t i = 0; i < count; ++i) {
      const ReplanFamily& family = families[i % families.size()];
      const std::uint64_t seed = scatter(options.seed + 1000 * difference + i);
      PlanProblem problem = family.draw(seed);
      problem.capacity.reset();
      const MemoryPlan known = plan(problem, {.work_limit = 100'000, .threads = 1}).value();
      const PlanProblem changed = exchanged(problem, difference, seed);
      double fastest = 1e9;
      MemoryPlan made;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const double begin = thread_seconds();
        made = replan(changed, known).value();
        fastest = std::min(fastest, thread_seconds() - begin);
      }
      refuse_invalid(changed, made, seed);
      const double begin = thread_seconds();
      const MemoryPlan full = plan(changed, {.work_limit = 100'000, .threads = 1}).value();
      full_time += thread_seconds() - begin;
      const double ratio = static_cast<double>(made.size) / static_cast<double>(full.size);
      worst = std::max(worst, ratio);
      near += ratio <= 1.01 ? 1 : 0;
      time += fastest;
      for (std::size_t n = 0; n < problem.lifetimes.size(); ++n) {
        if (changed.lifetimes[n].bytes == 0) continue;
        others += 1;
        kept += made.slots[n].offset == known.slots[n].offset ? 1 : 0;
      }
      ++drawn;
    }
    const auto all = static_cast<double>(drawn);
    row(fmt::format("{} nodes gone, as many new", difference),
        fmt::format("{} of {} within 1 %, worst {:.4f}, {:.0f} % stay, {:.0f} us, full plan {:.0f} us", near, drawn,
                    worst, 100 * kept / others, 1e6 * time / all, 1e6 * full_time / all),
        "1 % of a full plan", near == drawn);
  }
}

}  // namespace berth::bench
