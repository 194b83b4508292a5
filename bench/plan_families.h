// Fresh problems of each family, drawn anew in every run, and how many of them the planner solves. The seed that is
// printed draws the same problems again. Seeds fall into two halves by their hash: rules are chosen with the one, and
// the other is looked at only when they are.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "berth/plan/plan.h"
#include "support/plan_families.h"

namespace berth::bench {

enum class Half : std::uint8_t { kBoth, kDevelopment, kHeldOut };

struct FamilyOptions {
  std::size_t count = 12;  // draws of each family
  std::uint64_t seed = 0;
  Half half = Half::kBoth;
  unsigned threads = 2;
  double limit = 3.0;         // seconds for each problem
  std::string only;           // families whose name begins so
  std::string folder;         // of public instances
  bool each = false;          // a line for each problem
  std::uint64_t planner = 0;  // the planner's own seed
};

struct Family {
  std::string name;
  std::string goal;
  double share;  // of the drawn that the goal wants solved
  double ratio;  // a problem is solved at this many times its bound; 0: when it fits its capacity
  double limit;  // seconds; 0: as the options say
  std::function<PlanProblem(std::uint64_t)> draw;
};

// A number that has little to do with its argument.
inline std::uint64_t scatter(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline std::vector<Family> families(const std::string& folder) {
  const auto slack = [](std::uint64_t seed) { return std::array{0.0, 0.02, 0.05}[scatter(seed) % 3]; };
  const auto size = [](std::uint64_t seed, std::size_t low, std::size_t high) {
    return low + scatter(seed + 1) % (high - low + 1);
  };
  std::vector<Family> list;
  const auto tiling = [&](const std::string& name, auto make) {
    list.push_back({name + ", 120 to 450", "90 % in 3 s", 0.9, 0, 0,
                    [=](std::uint64_t seed) { return make(size(seed, 120, 450), slack(seed), seed); }});
    list.push_back(
        {name + ", 800", "60 % in 3 s", 0.6, 0, 0, [=](std::uint64_t seed) { return make(800, slack(seed), seed); }});
  };
  tiling("guillotine", [](std::size_t n, double d, std::uint64_t seed) { return cut_tiling(n, d, 0.0, seed); });
  tiling("pinwheel", [](std::size_t n, double d, std::uint64_t seed) { return cut_tiling(n, d, 0.7, seed); });
  tiling("grid", [](std::size_t n, double d, std::uint64_t seed) { return grid_tiling(n, d, seed); });
  const auto program = [&](const std::string& name, double share, double ratio, double limit, auto make) {
    const std::string goal = ratio == 1.0 ? fmt::format("{:.0f} % at the bound", 100 * share)
                                          : fmt::format("{:.0f} % at {:.4f}", 100 * share, ratio);
    list.push_back({name, goal + fmt::format(" in {:.0f} s", limit == 0 ? 3.0 : limit), share, ratio, limit, make});
  };
  program("training step, 200 to 800", 0.9, 1.0, 0,
          [=](std::uint64_t seed) { return training_step(size(seed, 200, 800), seed); });
  program("branches, 100 to 600", 0.9, 1.0, 0,
          [=](std::uint64_t seed) { return branches(size(seed, 100, 600), seed); });
  program("workspaces, 100 to 800", 0.9, 1.0, 0,
          [=](std::uint64_t seed) { return workspaces(size(seed, 100, 800), seed); });
  program("one huge, 1,000 to 4,000", 0.9, 1.0, 0,
          [=](std::uint64_t seed) { return one_huge(size(seed, 1000, 4000), seed); });
  std::vector<PlanProblem> known;
  for (const char* name : {"A", "C", "D", "F", "H", "J"}) {
    if (auto problem = read_problem(fmt::format("{}/{}.1048576.csv", folder, name))) known.push_back(*problem);
  }
  if (!known.empty()) {
    program("perturbed public instances", 0.9, 1.01, 0,
            [=](std::uint64_t seed) { return perturbed(known[scatter(seed) % known.size()], seed); });
  }
  program("large training step", 1.0, 1.0005, 5,
          [=](std::uint64_t seed) { return training_step(size(seed, 10'000, 50'000), seed); });
  program("large compiled graph", 1.0, 1.0005, 5,
          [=](std::uint64_t seed) { return compiled_graph(size(seed, 10'000, 100'000), seed); });
  program("large branches", 1.0, 1.0005, 5,
          [=](std::uint64_t seed) { return branches(size(seed, 10'000, 100'000), seed); });
  program("large one huge", 1.0, 1.0005, 5,
          [=](std::uint64_t seed) { return one_huge(size(seed, 10'000, 50'000), seed); });
  program("large heavy-tailed", 1.0, 1.0005, 5,
          [=](std::uint64_t seed) { return heavy_tailed_problem(size(seed, 10'000, 100'000), seed); });
  return list;
}

// The seeds of a family's draws.
inline std::vector<std::uint64_t> draw_seeds(const Family& family, const FamilyOptions& options) {
  std::uint64_t state = options.seed;
  for (const char letter : family.name) state = scatter(state ^ static_cast<unsigned char>(letter));
  std::vector<std::uint64_t> seeds;
  while (seeds.size() < options.count) {
    state = scatter(state);
    const bool held_out = (scatter(~state) & 1) != 0;
    if (options.half == Half::kBoth || held_out == (options.half == Half::kHeldOut)) seeds.push_back(state);
  }
  return seeds;
}

// Calls `row(name, figures, goal, met)` for each family.
inline void family_rows(
    const FamilyOptions& options,
    const std::function<void(const std::string&, const std::string&, const std::string&, bool)>& row) {
  for (const Family& family : families(options.folder)) {
    if (family.name.rfind(options.only, 0) != 0) continue;
    const double limit = family.limit == 0 ? options.limit : family.limit;
    std::size_t solved = 0;
    double worst = 1;
    std::vector<double> times;
    for (const std::uint64_t seed : draw_seeds(family, options)) {
      if (isatty(STDERR_FILENO))
        fmt::print(stderr, "\r\033[K{}: {} of {} ...\r", family.name, times.size(), options.count);
      PlanProblem problem = family.draw(seed);
      const std::uint64_t bound = plan_lower_bound(problem).value();
      PlanOptions how{.time_limit = limit, .threads = options.threads, .seed = options.planner};
      double reached = limit;
      if (family.ratio > 0) {
        how.progress = [&](const PlanProgress& now) { reached = now.seconds; };
        // What is a little above the bound is enough: the search stops there.
        if (family.ratio > 1) problem.capacity = static_cast<std::uint64_t>(family.ratio * static_cast<double>(bound));
      }
      const Result<MemoryPlan> made = plan(problem, how);
      double ratio = 0;
      if (made) {
        if (const Violation violation = validate(problem, *made)) {
          fmt::print("INVALID PLAN: {} (seed {})\n", describe(violation, problem, *made), seed);
          std::exit(1);
        }
        ratio = static_cast<double>(made->size) / static_cast<double>(std::max<std::uint64_t>(1, made->lower_bound));
      }
      const bool good = made && (family.ratio == 0 || ratio <= family.ratio);
      solved += good ? 1 : 0;
      if (made && family.ratio > 0) worst = std::max(worst, ratio);
      times.push_back(good ? made->seconds : limit);
      if (options.each) {
        const double room = static_cast<double>(problem.capacity.value_or(bound)) / static_cast<double>(bound);
        fmt::print("  {} seed {:016x} n {} room {:.4f} {} {:.6f} {:.3f} s {} {}\n", family.name, seed,
                   problem.lifetimes.size(), room, good ? "solved" : "OPEN", ratio, made ? made->seconds : limit,
                   made ? made->work : 0, made ? made->strategy : made.error().message());
        std::fflush(stdout);
      }
    }
    std::sort(times.begin(), times.end());
    std::string figures = fmt::format("{} of {}, median {:.3f} s", solved, times.size(), times[times.size() / 2]);
    if (worst > 1) figures += fmt::format(", worst {:.5f}", worst);
    row(family.name, figures, family.goal,
        static_cast<double>(solved) >= family.share * static_cast<double>(times.size()));
  }
}

}  // namespace berth::bench
