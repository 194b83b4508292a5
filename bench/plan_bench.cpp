// The planner against the named strategies and against its goals, each row from this run. Public instances are read
// from the folder given as argument or in BERTH_PLANNER_DATA; rows that need them say so when they are absent.
// Everything else is generated from seeds. Times are wall times of this machine, including all that runs beside it.
//
//   plan_bench [FOLDER] [OPTIONS]
//     --quick        leaves out the rows of a million lifetimes and the long minimisations
//     --families     only the families of fresh problems
//     --count N      problems of each family (default 12)
//     --seed N       draws the problems of an earlier run again (default: other ones in every run)
//     --half H       only those of one half of the seeds: development or held-out
//     --only NAME    only families whose name begins so
//     --replan N     problems of each family whose sizes change (default 36); with --families, 0
//     --threads N, --limit SECONDS, --planner-seed N, --each    how each problem is planned, and a line for each
#include <fmt/core.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "berth/plan/plan.h"
#include "plan_families.h"
#include "plan_replan.h"
#include "support/plan_instances.h"

namespace berth::bench {
namespace {

int met = 0, missed = 0, absent = 0;

void row(const std::string& what, const std::string& peers, const std::string& ours, const std::string& goal,
         bool reached) {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K");
  fmt::print("{:<34} {:<26} {:<38} {:<34} {}\n", what, peers, ours, goal, reached ? "met" : "MISSED");
  std::fflush(stdout);
  ++(reached ? met : missed);
}

// What is being measured now, for whoever watches.
void note(const std::string& what) {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K{} ...\r", what);
}

// A figure of this process in KiB, such as "VmHWM:", the most memory it ever held; 0 where the system does not tell.
std::uint64_t memory_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == name) {
      status >> word;
      return std::stoull(word);
    }
  }
  return 0;
}

// Forgets the most memory held so far, and gives back what is free; the memory held now.
std::uint64_t begin_memory() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
  return memory_kib("VmRSS:");
}

void heading() {
  fmt::print("{:<34} {:<26} {:<38} {:<34} {}\n", "instance", "best named strategy", "berth", "goal", "");
  fmt::print("{:-<34} {:-<26} {:-<38} {:-<34} {:-<6}\n", "", "", "", "", "");
}

// A plan that breaks a rule would make every figure worthless.
MemoryPlan checked(const PlanProblem& problem, Result<MemoryPlan> made) {
  if (const Violation violation = validate(problem, *made)) {
    fmt::print("INVALID PLAN: {}\n", describe(violation, problem, *made));
    std::exit(1);
  }
  return *std::move(made);
}

double ratio(const MemoryPlan& made) {
  return static_cast<double>(made.size) / static_cast<double>(std::max<std::uint64_t>(1, made.lower_bound));
}

std::string best_peer(const PlanProblem& problem, std::initializer_list<std::string_view> leave_out = {}) {
  PlanProblem free = problem;
  free.capacity.reset();
  std::string name;
  double best = 0, seconds = 0;
  for (const StrategyInfo& info : strategies()) {
    if (std::find(leave_out.begin(), leave_out.end(), info.name) != leave_out.end()) continue;
    const MemoryPlan made = checked(free, plan_with(info.name, free));
    seconds += made.seconds;
    if (name.empty() || ratio(made) < best) {
      best = ratio(made);
      name = info.name;
    }
  }
  return fmt::format("{:.5f} {}", best, name);
}

void fit_rows(const std::string& folder) {
  for (const char* name : {"A", "C", "D", "F", "H", "J"}) {
    auto problem = read_problem(fmt::format("{}/{}.1048576.csv", folder, name));
    if (!problem) {
      ++absent;
      continue;
    }
    note(fmt::format("fitting {}", name));
    const std::string peers = best_peer(*problem);
    problem->capacity = 1'048'576;
    std::vector<double> times;
    int solved = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto made = plan(*problem, {.time_limit = 5.0, .threads = 1, .seed = seed});
      if (!made) continue;
      ++solved;
      times.push_back(1e3 * checked(*problem, made).seconds);
    }
    std::sort(times.begin(), times.end());
    if (times.empty()) times.push_back(5000);
    row(fmt::format("{} at 1,048,576, 20 seeds", name), peers,
        fmt::format("{} of 20, median {:.1f} ms, worst {:.1f} ms", solved, times[times.size() / 2], times.back()),
        "20 ms, never above 100 ms", solved == 20 && times[times.size() / 2] < 20 && times.back() < 100);
  }
}

void smallest_rows(const std::string& folder, bool quick) {
  struct Goal {
    const char* name;
    double limit;
    double seconds;
    const char* text;
  };
  for (const Goal& goal : {Goal{"C", 2, 0.005, "the bound in 5 ms"}, Goal{"D", 20, 1, "the bound in 1 s"},
                           Goal{"J", 90, 90, "the bound in 90 s, or a proof"}}) {
    const auto problem = read_problem(fmt::format("{}/{}.1048576.csv", folder, goal.name));
    if (!problem) {
      ++absent;
      continue;
    }
    note(fmt::format("the smallest size of {}, {} s", goal.name, goal.limit));
    double last = 0;
    PlanOptions options{.time_limit = quick ? std::min(goal.limit, 5.0) : goal.limit};
    options.progress = [&](const PlanProgress& now) { last = now.seconds; };
    const MemoryPlan made = checked(*problem, plan(*problem, options));
    row(fmt::format("smallest {}", goal.name), best_peer(*problem),
        fmt::format("{:.5f} = {} after {:.3f} s", ratio(made), made.size, last), goal.text,
        made.optimal && last <= goal.seconds);
  }
}

void graph_rows(const std::string& folder) {
  note("large graphs");
  if (const auto problem = read_problem(folder + "/iopddl_Y_1.csv")) {
    const std::string peers = best_peer(*problem);
    for (const auto& [limit, goal] : {std::pair(2.0, 1.0005), std::pair(5.0, 1.0001)}) {
      const MemoryPlan made = checked(*problem, plan(*problem, {.time_limit = limit}));
      row(fmt::format("iopddl_Y_1, {} nodes", problem->lifetimes.size()), peers,
          fmt::format("{:.6f} in {:.2f} s", ratio(made), made.seconds), fmt::format("{} at {} s", goal, limit),
          ratio(made) <= goal && made.seconds <= 1.1 * limit);
    }
  } else {
    absent += 2;
  }
  for (const char* name : {"iopddl_G_1", "somas_tensors_resnet50"}) {
    const auto problem = read_problem(fmt::format("{}/{}.csv", folder, name));
    if (!problem) {
      ++absent;
      continue;
    }
    const MemoryPlan made = checked(*problem, plan(*problem, {.time_limit = 5.0}));
    row(fmt::format("{}, {} nodes", name, problem->lifetimes.size()), best_peer(*problem),
        fmt::format("{:.6f} in {:.0f} ms", ratio(made), 1e3 * made.seconds), "the bound", made.optimal);
  }
}

void million_rows(std::size_t count) {
  struct Family {
    const char* name;
    PlanProblem (*make)(std::size_t, std::uint64_t);
    double goal;
  };
  for (const Family& family :
       {Family{"exponential", exponential_problem, 1.03}, Family{"heavy-tailed", heavy_tailed_problem, 1.001}}) {
    // The peers' offline rules take minutes on so many: the online one stands for them.
    double first_plan[2] = {0, 0};
    std::uint64_t memory[2] = {0, 0};
    std::string ours;
    double reached = 0, seconds = 0;
    std::string peers;
    for (const bool whole : {false, true}) {
      note(fmt::format("{}, {} lifetimes", family.name, whole ? count : count / 10));
      const PlanProblem problem = family.make(whole ? count : count / 10, 1);
      PlanOptions options{.time_limit = whole ? 10.0 : 1.0};
      options.progress = [&](const PlanProgress& now) {
        double& first = first_plan[whole ? 1 : 0];
        if (first == 0) first = now.seconds;
      };
      const std::uint64_t held = begin_memory();
      Result<MemoryPlan> planned = plan(problem, options);
      memory[whole ? 1 : 0] = memory_kib("VmHWM:") - held;
      const MemoryPlan made = checked(problem, std::move(planned));
      if (!whole) continue;
      const MemoryPlan online = checked(problem, plan_with("online_best_fit", problem));
      peers = fmt::format("{:.5f} online_best_fit", ratio(online));
      reached = ratio(made);
      seconds = made.seconds;
      ours = fmt::format("{:.5f} in {:.1f} s", reached, seconds);
    }
    row(fmt::format("{}, {} lifetimes", family.name, count), peers, ours, fmt::format("{} in 10 s", family.goal),
        reached <= family.goal && seconds <= 11);
    const double growth = first_plan[1] / std::max(1e-6, first_plan[0]);
    row(fmt::format("{}, first plan, {} to {}", family.name, count / 10, count), "",
        fmt::format("{:.2f} s to {:.2f} s, {:.1f}x", first_plan[0], first_plan[1], growth), "at most 12x",
        growth <= 12);
    const double more = static_cast<double>(memory[1]) / static_cast<double>(std::max<std::uint64_t>(1, memory[0]));
    row(fmt::format("{}, memory, {} to {}", family.name, count / 10, count), "",
        fmt::format("{} MiB to {} MiB, {:.1f}x", memory[0] / 1024, memory[1] / 1024, more), "linear: at most 12x",
        memory[0] > 0 && more <= 12);
  }
}

void densenet_rows() {
  double worst_time = 0, worst_ratio = 1, peers_low = 9, peers_high = 0;
  const int count = 10;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const PlanProblem problem = densenet_problem(seed);
    double fastest = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const MemoryPlan made = checked(problem, plan(problem, {.threads = 1}));
      fastest = std::min(fastest, made.seconds);
      worst_ratio = std::max(worst_ratio, ratio(made));
    }
    worst_time = std::max(worst_time, fastest);
    for (const char* name : {"size_first_fit", "smallest_gap", "xla_spatial", "breadth"}) {
      const double peer = ratio(*plan_with(name, problem));
      peers_low = std::min(peers_low, peer);
      peers_high = std::max(peers_high, peer);
    }
  }
  row(fmt::format("densely connected, {} networks", count),
      fmt::format("{:.3f} to {:.3f} by size", peers_low, peers_high),
      fmt::format("{:.5f}, {:.2f} ms, best of 5", worst_ratio, 1e3 * worst_time), "the bound in 1 ms",
      worst_ratio == 1 && worst_time <= 0.001);
}

void proof_rows() {
  int above = 0, closed = 0, count = 0;
  double seconds = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const PlanProblem problem = full_load_problem(24, 4, 16, seed * 31 + 4);
    const std::uint64_t load = *plan_lower_bound(problem);
    const MemoryPlan made = checked(problem, plan(problem, {.work_limit = 200'000}));
    seconds += made.seconds;
    ++count;
    if (made.lower_bound > load) ++above;
    if (made.lower_bound > load && made.optimal) ++closed;
  }
  row(fmt::format("full at every level, {} problems", count), "none proves anything",
      fmt::format("{} proven above the load, {} optimal, {:.1f} s", above, closed, seconds),
      "a gap closed above the load", closed > 0);
}

}  // namespace
}  // namespace berth::bench

int main(int argc, char** argv) {
  using namespace berth::bench;
  std::string folder;
  bool quick = false, families_only = false;
  FamilyOptions options;
  std::size_t replanned = 36;
  options.seed = std::random_device()();
  if (const char* given = std::getenv("BERTH_PLANNER_DATA")) folder = given;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--quick") {
      quick = true;
    } else if (option == "--families") {
      families_only = true;
      replanned = 0;
    } else if (option == "--each") {
      options.each = true;
    } else if (option.rfind("--", 0) == 0 && i + 1 < argc) {
      const std::string value = argv[++i];
      char* end = nullptr;
      const double number = std::strtod(value.c_str(), &end);
      const bool numeric = *end == '\0' && number >= 0;
      if (option == "--half" && (value == "development" || value == "held-out")) {
        options.half = value == "held-out" ? Half::kHeldOut : Half::kDevelopment;
      } else if (option == "--only") {
        options.only = value;
      } else if (option == "--count" && numeric && number >= 1) {
        options.count = static_cast<std::size_t>(number);
      } else if (option == "--seed" && numeric) {
        options.seed = static_cast<std::uint64_t>(number);
      } else if (option == "--replan" && numeric) {
        replanned = static_cast<std::size_t>(number);
      } else if (option == "--threads" && numeric) {
        options.threads = static_cast<unsigned>(number);
      } else if (option == "--limit" && numeric) {
        options.limit = number;
      } else if (option == "--planner-seed" && numeric) {
        options.planner = static_cast<std::uint64_t>(number);
      } else {
        fmt::print(stderr, "plan_bench: {} {} is not an option with a value it takes; see the top of its source\n",
                   option, value);
        return 2;
      }
    } else {
      folder = option;
    }
  }
  options.folder = folder;
  if (!families_only) {
    heading();
    fit_rows(folder);
    smallest_rows(folder, quick);
    graph_rows(folder);
    densenet_rows();
    proof_rows();
    if (!quick) million_rows(1'000'000);
    fmt::print("\n");
  }
  const auto print_row = [](const std::string& name, const std::string& figures, const std::string& goal,
                            bool reached) { row(name, "", figures, goal, reached); };
  if (replanned > 0) {
    fmt::print("other sizes for known plans, drawn from seed {}: {} of each family, half of them held out\n",
               options.seed, replanned);
    resized_rows(options, replanned, print_row);
    changed_rows(options, replanned, print_row);
    following_rows(options, print_row);
    fmt::print("\n");
  }
  fmt::print("fresh problems, drawn from seed {}: {} of each family, {} threads\n", options.seed, options.count,
             options.threads);
  family_rows(options, print_row);
  fmt::print("\n{} goals met, {} missed", met, missed);
  if (absent > 0) {
    fmt::print(", {} rows left out: their instances are not in \"{}\" (give a folder, or set BERTH_PLANNER_DATA)",
               absent, folder);
  }
  fmt::print("\n");
  return 0;
}
