// `./run bench serving`: what a server does, stock ONNX Runtime against the same with Berth as its memory: many
// threads, many shapes, one large input among small ones, and a decoder with a growing cache. Each measurement is a
// process of its own, and the sides take turns. Prints the goals and whether they are met. Where jemalloc and mimalloc
// are installed, the engine without its arena on each of them is measured too. Arguments: --only TEXT (models whose
// name contains it), --part threads|time|shapes|decay|decoder, --runs N (per thread and turn; default 8), --turns N
// (default 3), --shapes N (default 56), --seed N (of the shapes; default 11), --heaps (the heaps with threads too),
// --realtime (before all other work of the machine, where the system permits it: without it, a side that has fewer
// threads ready to run gets a smaller part of a machine that has other work).
#include <fmt/format.h>
#include <sched.h>

#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>

#include "base/os/processors.h"
#include "serving_children.h"

namespace {

using namespace serving;

struct Heap {
  const char* name;
  const char* library;
};
constexpr Heap kHeaps[] = {{"jemalloc", "libjemalloc.so.2"}, {"mimalloc", "libmimalloc.so.2"}};

std::string library_path(const Heap& heap) {
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib64/", "/usr/lib/"})
    if (fs::exists(std::string(folder) + heap.library)) return std::string(folder) + heap.library;
  return {};
}

Json spawn(const std::string& arguments, const std::string& preload = {}) {
  const std::string environment = preload.empty() ? "" : fmt::format("LD_PRELOAD='{}' ", preload);
  const std::string command =
      fmt::format("{}'{}' --child {}", environment, fs::read_symlink("/proc/self/exe").string(), arguments);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return Json{{"failed", "no process could be made"}};
  std::string text;
  std::array<char, 4096> piece{};
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), pipe)) text.append(piece.data(), n);
  pclose(pipe);
  Json report = Json::parse(text, nullptr, false);
  return report.is_discarded() ? Json{{"failed", "the process ended early"}} : report;
}

double mib(const Json& bytes) {
  return bytes.get<double>() / (1 << 20);
}

unsigned missed = 0, judged = 0;
void goal(const std::string& what, const std::string& wanted, const std::string& found, bool met) {
  fmt::print("  {:<52} {:<26} {:<26} {}\n", what, wanted, found, met ? "met" : "NOT MET");
  missed += met ? 0 : 1;
  ++judged;
}

struct Pair {
  Json stock, berth;
  bool failed() const { return stock.contains("failed") || berth.contains("failed"); }
};
Pair both(const std::string& arguments) {
  return {spawn("stock " + arguments), spawn("berth " + arguments)};
}

int child(const std::vector<std::string>& arguments) {
  const std::string &side = arguments[0], &what = arguments[1];
  const auto number = [&](std::size_t i) { return std::atoi(arguments[i].c_str()); };
  const auto count = [&](std::size_t i) { return static_cast<unsigned>(number(i)); };
  Json result;
  if (what == "decoder") {
    result = decoder_child(side, number(2));
  } else {
    const BenchModel& model = models()[count(2)];
    if (what == "time")
      result = time_child(model, number(3));
    else if (what == "threads")
      result = threads_child(side, model, count(3), number(4),
                             arguments[5] == "default" ? std::nullopt : std::optional<unsigned>(count(5)));
    else if (what == "shapes")
      result = shapes_child(side, model, number(3), count(4));
    else
      result = decay_child(side, model);
  }
  fmt::print("{}\n", result.dump());
  return 0;
}

// Figures of several turns of one side: memory at its highest, time in all.
struct Turns {
  double over = 0, seconds = 0, cpu = 0, planned = 1;
  Json last;
  bool failed = false;
  void add(Json turn) {
    failed = failed || turn.contains("failed");
    if (failed) return;
    over = std::max(over, mib(turn["over"]));
    seconds += turn["seconds"].get<double>();
    cpu += turn["cpu"].get<double>();
    planned = std::min(planned, turn.value("planned", 1.0));
    failed = failed || !turn["same"].get<bool>();
    last = std::move(turn);
  }
};

struct ThreadsResult {
  std::vector<double> memory, uncapped, speed, cpu, capped, time;
};

void bench_threads(std::size_t index, int runs, int turns, bool heaps, ThreadsResult& results) {
  const unsigned processors = berth::internal::usable_processors();
  for (const unsigned threads : {2u, 4u, 8u}) {
    Turns stock, berth, uncapped, capped;
    std::array<Turns, std::size(kHeaps)> others;
    const bool own_cap = threads == 8 && processors != 2;  // with two processors it is the default
    for (int turn = 0; turn < turns; ++turn) {
      const std::string what = fmt::format("threads {} {} {} ", index, threads, runs);
      // The side that is first alternates.
      if (turn % 2 == 0) stock.add(spawn("stock " + what + "0"));
      berth.add(spawn("berth " + what + "default"));
      if (turn % 2 != 0) stock.add(spawn("stock " + what + "0"));
      uncapped.add(spawn("berth " + what + "0"));
      if (own_cap) capped.add(spawn("berth " + what + "2"));
      for (std::size_t i = 0; i < std::size(kHeaps) && heaps && turn == 0; ++i)
        if (const std::string path = library_path(kHeaps[i]); !path.empty())
          others[i].add(spawn(fmt::format("{} {}0", kHeaps[i].name, what), path));
    }
    if (stock.failed || berth.failed || uncapped.failed || capped.failed) {
      goal(fmt::format("{} threads: every run the same bits", threads), "yes", "failed, or other bits", false);
      continue;
    }
    if (!own_cap) capped = berth;
    const double ratio = berth.over / std::max(stock.over, 1e-3);
    const double plans = berth.last.value("plan", 0.0) * threads / (1 << 20);
    const double speed = stock.seconds / berth.seconds, cpu = berth.cpu / std::max(stock.cpu, 1e-6);
    results.memory.push_back(ratio);
    results.uncapped.push_back(uncapped.over / std::max(stock.over, 1e-3));
    results.speed.push_back(speed);
    results.cpu.push_back(cpu);
    fmt::print(
        "  {} threads: over the session {:.2f} MiB, stock {:.2f}; no cap {:.2f}; {} plans {:.2f} MiB; throughput "
        "{:.3f}, no cap {:.3f}, processor time {:.3f}, no cap {:.3f} of stock's\n",
        threads, berth.over, stock.over, uncapped.over, threads, plans, speed, stock.seconds / uncapped.seconds, cpu,
        uncapped.cpu / std::max(stock.cpu, 1e-6));
    for (std::size_t i = 0; i < std::size(kHeaps); ++i)
      if (others[i].over > 0 && !others[i].failed)
        fmt::print("  {} threads, the engine without its arena on {}: {:.2f} MiB; throughput {:.3f} of stock's\n",
                   threads, kHeaps[i].name, others[i].over, stock.seconds / turns / others[i].seconds);
    const double planned = std::min(berth.planned, uncapped.planned);
    goal(fmt::format("{} threads: requests planned", threads), ">= 99 %", fmt::format("{:.2f} %", 100 * planned),
         planned >= 0.99);
    goal(fmt::format("{} threads: memory of the runs", threads), "<= 1 of stock's", fmt::format("{:.2f}", ratio),
         ratio <= 1);
    const auto within_plans = [&](const char* what, double over) {
      goal(fmt::format("{} threads{}: N plans plus 5 %", threads, what), fmt::format("<= {:.2f} MiB", plans * 1.05),
           fmt::format("{:.2f} MiB", over), over <= plans * 1.05);
    };
    within_plans("", berth.over);
    within_plans(", no cap", uncapped.over);
    goal(fmt::format("{} threads: throughput", threads), ">= 1 of stock's", fmt::format("{:.3f}", speed), speed >= 1);
    const bool same = stock.last["hash"] == berth.last["hash"] && stock.last["hash"] == uncapped.last["hash"];
    goal(fmt::format("{} threads: same bits", threads), "yes", same ? "yes" : "no", same);
    if (threads == 8) {
      const double part = uncapped.seconds / capped.seconds;
      results.capped.push_back(part);
      goal(fmt::format("8 threads, 2 arenas ({:.2f} MiB): throughput", capped.over), ">= 0.95 of no cap",
           fmt::format("{:.3f}", part), part >= 0.95);
    }
  }
}

void bench_time(std::size_t index, ThreadsResult& results) {
  constexpr int kRuns = 41;
  const Json times = spawn(fmt::format("both time {} {}", index, kRuns));
  if (times.contains("failed") || !times["same"].get<bool>()) {
    goal("one thread: every run the same bits", "yes", "failed, or other bits", false);
    return;
  }
  const double ratio = times["berth"].get<double>() / times["stock"].get<double>();
  results.time.push_back(ratio);
  goal("one thread: processor time of a run, median", "<= 1 of stock's",
       fmt::format("{:.3f} ({:.3f} ms)", ratio, times["berth"].get<double>() * 1e3), ratio <= 1);
}

void bench_shapes(std::size_t index, int count, unsigned seed) {
  const Pair pair = both(fmt::format("shapes {} {} {}", index, count, seed));
  if (pair.failed()) {
    goal("shapes", "measured", "failed", false);
    return;
  }
  const Json& b = pair.berth;
  fmt::print(
      "  {} shapes: over the session {:.1f} MiB, stock {:.1f}; {} runs recorded, {} predicted; beginning one {:.2f} "
      "ms, "
      "of which layout {:.2f}; and {:.2f} for new pages\n",
      count, mib(b["over"]), mib(pair.stock["over"]), b["counters"]["recorded"].get<int>(), b["unseen"].get<int>(),
      b["begin_ms"].get<double>(), b["layout_ms"].get<double>(), b["fault_ms"].get<double>());
  goal("shapes: last recorded run", "<= 6", std::to_string(b["last_recorded"].get<int>()), b["last_recorded"] <= 6);
  goal("shapes: requests off the plan after that", "0", std::to_string(b["deviated"].get<int>()), b["deviated"] == 0);
  goal("shapes: arena over the shape's own plan, worst", "<= 1.02", fmt::format("{:.4f}", b["worst"].get<double>()),
       b["worst"] <= 1.02);
  goal("shapes: the same, mean", "<= 1.005", fmt::format("{:.4f}", b["mean"].get<double>()), b["mean"] <= 1.005);
  const double most = std::max(1.0, b["requests"].get<double>() / 400);
  goal("shapes: beginning a run of a new shape, mean", fmt::format("<= {:.1f} ms", most),
       fmt::format("{:.2f} ms, slowest {:.1f}", b["begin_ms"].get<double>(), b["slowest_ms"].get<double>()),
       b["begin_ms"] <= most);
  goal("shapes: same bits", "yes", b["hashes"] == pair.stock["hashes"] ? "yes" : "no",
       b["hashes"] == pair.stock["hashes"]);
}

void bench_decay(std::size_t index) {
  const Pair pair = both(fmt::format("decay {}", index));
  if (pair.failed()) {
    goal("resident after the decay", "measured", "failed", false);
    return;
  }
  const auto line = [](const char* side, const Json& j) {
    fmt::print("  320, 960, 320 pixels, {}: resident {:.1f}, {:.1f}, {:.1f} MiB; {} faults in the next 10 runs\n", side,
               mib(j["before"]), mib(j["large"]), mib(j["after"]), j["faults"].get<int>());
  };
  line("stock", pair.stock);
  for (const Heap& heap : kHeaps) {
    const std::string path = library_path(heap);
    const Json other = path.empty() ? Json{{"failed", ""}} : spawn(fmt::format("{} decay {}", heap.name, index), path);
    if (other.contains("failed"))
      fmt::print("  {}: not measured; is {} installed?\n", heap.name, heap.library);
    else
      line(heap.name, other);
  }
  line("Berth", pair.berth);
  const double ratio = pair.berth["after"].get<double>() / pair.berth["before"].get<double>();
  goal("resident after the decay, of before", "<= 1.10", fmt::format("{:.2f}", ratio), ratio <= 1.1);
  const int faults = pair.berth["faults"].get<int>();
  goal("page faults of a steady load, in 10 runs", "0", std::to_string(faults), faults == 0);
}

void bench_decoder() {
  fmt::print("\nDecoder with a growing cache, 200 steps\n");
  // Of each step the least of several turns: other work of the machine only ever adds to the time of a short run.
  constexpr int kTurns = 9;
  std::vector<double> of_stock, of_berth;
  Pair pair;
  for (int turn = 0; turn < kTurns; ++turn) {
    pair = both("decoder 200");
    if (pair.failed()) {
      goal("decoder", "measured", "failed", false);
      return;
    }
    const auto take = [](std::vector<double>& least, const Json& times) {
      least.resize(times.size(), 1e9);
      for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], times[i].get<double>());
    };
    take(of_stock, pair.stock["times"]);
    take(of_berth, pair.berth["times"]);
  }
  const double stock_cpu = std::accumulate(of_stock.begin(), of_stock.end(), 0.0);
  const double berth_cpu = std::accumulate(of_berth.begin(), of_berth.end(), 0.0);
  const Json& b = pair.berth;
  fmt::print(
      "  processor time {:.1f} ms, stock {:.1f}; beginning runs {:.1f} ms, of which the planner {:.1f} and new pages "
      "{:.1f}; page faults {}, stock {}\n",
      berth_cpu * 1e3, stock_cpu * 1e3, b["begin_ms"].get<double>(), b["search_ms"].get<double>(),
      b["fault_ms"].get<double>(), b["faults"].get<int>(), pair.stock["faults"].get<int>());
  goal("steps planned", ">= 190", std::to_string(b["planned"].get<int>()), b["planned"] >= 190);
  goal("processor time", "<= 1 of stock's", fmt::format("{:.3f}", berth_cpu / stock_cpu), berth_cpu <= stock_cpu);
  const double memory = b["over"].get<double>() / std::max(pair.stock["over"].get<double>(), 1.0);
  goal("resident memory over the session", "<= 0.9 of stock's",
       fmt::format("{:.2f} ({:.1f} of {:.1f} MiB)", memory, mib(b["over"]), mib(pair.stock["over"])), memory <= 0.9);
  goal("same bits", "yes", pair.stock["hash"] == b["hash"] ? "yes" : "no", pair.stock["hash"] == b["hash"]);
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(std::max(value, 1e-6));
  return std::exp(sum / static_cast<double>(values.size()));
}

void print_all(const ThreadsResult& results) {
  if (!results.time.empty()) {
    const double time = geometric_mean(results.time);
    fmt::print("\nAll models, one thread\n");
    goal("processor time of a run, geometric mean", "<= 1 of stock's", fmt::format("{:.3f}", time), time <= 1);
  }
  if (results.memory.empty()) return;
  fmt::print("\nAll models and numbers of threads\n");
  const auto memory = [](const char* what, const std::vector<double>& ratios) {
    const double mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size());
    goal(what, "<= 0.6 of stock's", fmt::format("{:.2f}", mean), mean <= 0.6);
  };
  memory("memory of the runs, mean", results.memory);
  memory("memory of the runs without a cap, mean", results.uncapped);
  const double speed = geometric_mean(results.speed), cpu = geometric_mean(results.cpu);
  goal("throughput, geometric mean", ">= 1 of stock's", fmt::format("{:.3f}", speed), speed >= 1);
  goal("processor time, geometric mean", "<= 1 of stock's", fmt::format("{:.3f}", cpu), cpu <= 1);
  if (results.capped.empty()) return;
  const double capped = geometric_mean(results.capped);
  goal("8 threads, 2 arenas: throughput, geometric mean", ">= 0.95 of no cap", fmt::format("{:.3f}", capped),
       capped >= 0.95);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "--child") return child({arguments.begin() + 1, arguments.end()});
  int runs = 8, turns = 3, shapes = 56;
  unsigned seed = 11;
  bool heaps = false;
  std::string only, part;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--runs" && has_value) {
      runs = std::max(1, std::atoi(arguments[++i].c_str()));
    } else if (arguments[i] == "--turns" && has_value) {
      turns = std::max(1, std::atoi(arguments[++i].c_str()));
    } else if (arguments[i] == "--realtime") {
      // Inherited by the processes that measure.
      const sched_param priority{.sched_priority = 1};
      if (sched_setscheduler(0, SCHED_RR, &priority) != 0) fmt::print("--realtime: not permitted\n");
    } else if (arguments[i] == "--shapes" && has_value) {
      shapes = std::max(8, std::atoi(arguments[++i].c_str()));
    } else if (arguments[i] == "--seed" && has_value) {
      seed = static_cast<unsigned>(std::atoi(arguments[++i].c_str()));
    } else if (arguments[i] == "--only" && has_value) {
      only = arguments[++i];
    } else if (arguments[i] == "--part" && has_value) {
      part = arguments[++i];
    } else if (arguments[i] == "--heaps") {
      heaps = true;
    } else {
      fmt::print(stderr,
                 "usage: serving_bench [--only TEXT] [--part threads|time|shapes|decay|decoder] [--runs N] [--turns N] "
                 "[--shapes N] [--seed N] [--heaps] [--realtime]\n");
      return 2;
    }
  }
  const auto wanted = [&](const char* name) { return part.empty() || part == name; };
  ThreadsResult results;
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < models().size() && part != "decoder"; ++i) {
    const BenchModel& model = models()[i];
    if (std::string(model.name).find(only) == std::string::npos) continue;
    const bool with_threads = wanted("threads") && model.threads,
               with_shapes = wanted("shapes") && !model.ranges.empty();
    const bool with_decay = wanted("decay") && i == 0, with_time = wanted("time") && model.threads;
    if (!with_threads && !with_time && !with_shapes && !with_decay) continue;
    if (!find_model(model.file)) {
      missing.emplace_back(model.name);
      continue;
    }
    fmt::print("\n{}\n", model.name);
    if (with_threads) bench_threads(i, runs, turns, heaps, results);
    if (with_time) bench_time(i, results);
    if (with_shapes) bench_shapes(i, shapes, seed);
    if (with_decay) bench_decay(i);
    std::fflush(stdout);
  }
  if (wanted("decoder")) bench_decoder();
  print_all(results);
  for (const std::string& name : missing) fmt::print("not measured: {} is not installed\n", name);
  fmt::print("{} of {} goals missed\n", missed, judged);
  return 0;
}
