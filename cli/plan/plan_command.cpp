// berth plan: a table of lifetimes in, offsets out.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/input_file.h"
#include "base/try.h"
#include "berth/plan/memory_map.h"
#include "berth/plan/plan.h"
#include "berth/plan/plan_files.h"
#include "command_line.h"
#include "commands.h"
#include "interrupt.h"
#include "streams.h"
#include "terminal.h"

namespace berth::cli {
namespace {

constexpr int kFits = 0;
constexpr int kBroken = 1;
constexpr int kBadInput = 2;
constexpr int kNotFoundInTime = 3;
constexpr int kImpossible = 4;

struct PlanArguments {
  std::string problem;
  std::string capacity;
  std::string alignment;
  std::string max_block;
  std::vector<std::string> banks;
  std::optional<double> time_limit;
  std::optional<std::uint64_t> work_limit;
  unsigned threads = 0;
  std::uint64_t seed = 0;
  bool smallest = false;
  bool compare = false;
  std::string output;
  std::string json;
  std::string html;
};

struct Comparison {
  StrategyInfo strategy;
  MemoryPlan plan;
};

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case Code::kInfeasible: return kImpossible;
    case Code::kNotFound:
    case Code::kCancelled: return kNotFoundInTime;
    case Code::kInvalidArgument:
    case Code::kInvalidData:
    case Code::kCycle:
    case Code::kIo: return kBadInput;
    default: return kBroken;
  }
}

int refuse_plan(const std::string& text, int code) {
  return cli::complain("plan", text, code);
}

Result<PlanTable> read_problem(const std::string& path) {
  if (path != "-") return read_plan_csv(path);
  BERTH_TRY_ASSIGN(const std::string text, internal::read_whole_stream(STDIN_FILENO, "standard input"));
  return parse_plan_csv(text, "standard input");
}

Error bad_option(const std::string& option, const std::string& expected, const std::string& found) {
  return Error::with_text(Code::kInvalidArgument, Layer::kProgram,
                          fmt::format("{}: expected {}, found \"{}\"", option, expected, found));
}

// What the options say about the problem.
Result<void> apply(const PlanArguments& arguments, PlanProblem& problem) {
  if (!arguments.capacity.empty()) {
    problem.capacity = parse_bytes(arguments.capacity);
    if (!problem.capacity) return bad_option("--capacity", "bytes such as 1048576 or 1MiB", arguments.capacity);
  }
  if (!arguments.alignment.empty()) {
    const auto bytes = parse_bytes(arguments.alignment);
    if (!bytes || *bytes == 0 || (*bytes & (*bytes - 1)) != 0)
      return bad_option("--align", "a power of two", arguments.alignment);
    problem.alignment = *bytes;
  }
  if (!arguments.max_block.empty()) {
    const auto bytes = parse_bytes(arguments.max_block);
    if (!bytes) return bad_option("--max-block", "bytes such as 128MiB", arguments.max_block);
    problem.max_block_bytes = *bytes;
  }
  if (!arguments.banks.empty()) {
    std::vector<Bank> banks;
    for (const std::string& text : arguments.banks) {
      const std::size_t equals = text.find('=');
      const auto bytes =
          equals == std::string::npos ? std::optional<std::uint64_t>() : parse_bytes(text.substr(equals + 1));
      if (!bytes) return bad_option("--bank", "NAME=BYTES, such as sram=256KiB, or NAME=0 for no limit", text);
      banks.push_back({.name = text.substr(0, equals), .capacity = *bytes});
    }
    if (banks.size() < problem.banks.size())
      return bad_option("--bank", fmt::format("{} of them, as the problem names that many", problem.banks.size()),
                        arguments.banks.back());
    problem.banks = std::move(banks);
  }
  return {};
}

// Every plan is validated before it is shown or written.
Result<void> judge(const PlanProblem& problem, const MemoryPlan& plan) {
  if (const Violation found = validate(problem, plan))
    return Error::with_text(Code::kDriver, Layer::kPlan,
                            fmt::format("the plan of \"{}\" is wrong, please report this: {}", plan.strategy,
                                        describe(found, problem, plan)));
  return {};
}

Result<MemoryPlan> find_plan(const PlanProblem& problem, const PlanArguments& arguments) {
  Progress progress("planning");
  const InterruptStop interrupt;
  PlanOptions options;
  options.time_limit = arguments.time_limit;
  options.work_limit = arguments.work_limit;
  options.threads = arguments.threads;
  options.seed = arguments.seed;
  options.smallest = arguments.smallest;
  options.cancel = interrupt.token();
  if (arguments.time_limit) progress.expect_seconds(*arguments.time_limit);
  const std::uint64_t most_work = arguments.work_limit.value_or(kDefaultWork);
  options.progress = [&](const PlanProgress& now) {
    std::optional<double> done;
    if (!arguments.time_limit)
      done = static_cast<double>(now.work) / static_cast<double>(std::max<std::uint64_t>(1, most_work));
    progress.update(done, fmt::format("best {}, bound {}, gap {:.3g} % (Ctrl-C keeps the best)", format_bytes(now.best),
                                      format_bytes(now.lower_bound), now.gap * 100));
  };
  auto found = plan(problem, options);
  if (found) {
    if (auto sound = judge(problem, *found); !sound) return sound.error();
  }
  return found;
}

// Runs every named strategy alone, on the problem without its capacity, to compare the sizes.
Result<std::vector<Comparison>> compare_strategies(PlanProblem problem, const PlanArguments& arguments) {
  problem.capacity.reset();
  Progress progress("comparing");
  PlanOptions options;
  options.threads = arguments.threads;
  options.seed = arguments.seed;
  std::vector<Comparison> out;
  for (const StrategyInfo& strategy : strategies()) {
    progress.update(static_cast<double>(out.size()) / static_cast<double>(strategies().size()),
                    std::string(strategy.name));
    auto found = plan_with(strategy.name, problem, options);
    if (!found) return found.error();
    if (auto sound = judge(problem, *found); !sound) return sound.error();
    out.push_back({strategy, *std::move(found)});
  }
  return out;
}

std::string ratio_text(std::uint64_t size, std::uint64_t bound) {
  if (bound == 0) return "1.0000";
  return fmt::format("{:.4f}", static_cast<double>(size) / static_cast<double>(bound));
}

void print_comparison(const std::vector<Comparison>& rows, const MemoryPlan* best) {
  std::uint64_t largest = 1;
  for (const Comparison& row : rows) largest = std::max(largest, row.plan.size);
  Table table;
  table.row({"strategy", "as in", "bytes", "of bound", "time", ""});
  const auto add = [&](std::string_view name, std::string_view peer, const MemoryPlan& plan) {
    table.row({std::string(name), std::string(peer), with_thousands(plan.size), ratio_text(plan.size, plan.lower_bound),
               format_seconds(plan.seconds), bar(static_cast<double>(plan.size) / static_cast<double>(largest), 24)});
  };
  for (const Comparison& row : rows) add(row.strategy.name, row.strategy.peer, row.plan);
  if (best != nullptr) add("berth", best->strategy, *best);
  fmt::print("\n{}", table.str());
}

void print_summary(const PlanTable& table, const MemoryPlan& plan) {
  Table facts;
  facts.row({"buffers", with_thousands(table.problem.lifetimes.size())});
  facts.row({"size", fmt::format("{} bytes ({})", with_thousands(plan.size), format_bytes(plan.size))});
  facts.row({"lower bound", fmt::format("{} bytes", with_thousands(plan.lower_bound))});
  facts.row({"gap", plan.optimal ? "0: proven optimal" : fmt::format("{:.4g} %", plan.gap() * 100)});
  if (table.problem.capacity)
    facts.row({"capacity", fmt::format("{} bytes: it fits", with_thousands(*table.problem.capacity))});
  if (plan.blocks.size() > 1) facts.row({"blocks", with_thousands(plan.blocks.size())});
  facts.row({"found by", fmt::format("{} in {}", plan.strategy, format_seconds(plan.seconds))});
  fmt::print("{}", facts.str());
}

std::string json_of(const MemoryPlan& plan, const std::vector<Comparison>& rows) {
  std::string text = plan_to_json(plan);
  if (rows.empty()) return text;
  nlohmann::json list = nlohmann::json::array();
  for (const Comparison& row : rows)
    list.push_back({{"strategy", row.strategy.name}, {"size", row.plan.size}, {"seconds", row.plan.seconds}});
  return text.insert(text.find('\n') + 1, "  \"compare\": " + list.dump() + ",\n");
}

std::string json_of(const Error& error, const PlanProblem& problem) {
  nlohmann::json out = {{"format", "berth-plan-failure"},
                        {"code", to_string(error.code())},
                        {"error", error.message()},
                        {"count", problem.lifetimes.size()}};
  if (const auto bound = plan_lower_bound(problem)) out["lower_bound"] = *bound;
  if (problem.capacity) out["capacity"] = *problem.capacity;
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int write_files(const PlanArguments& arguments, const PlanTable& table, const MemoryPlan& plan,
                const std::vector<Comparison>& rows) {
  if (!arguments.output.empty()) {
    if (const auto done = write_text(arguments.output, format_plan_csv(table, plan)); !done)
      return refuse_plan(done.error().message(), kBadInput);
  }
  if (!arguments.json.empty()) {
    if (const auto done = write_text(arguments.json, json_of(plan, rows)); !done)
      return refuse_plan(done.error().message(), kBadInput);
  }
  if (!arguments.html.empty()) {
    MemoryMap map;
    map.title =
        arguments.problem == "-" ? "Memory map" : arguments.problem.substr(arguments.problem.find_last_of('/') + 1);
    map.panels.push_back(map_panel(table.problem, plan, table.ids));
    map.panels.back().title = plan.optimal ? "An optimal plan" : "The best plan found";
    map.panels.back().facts.push_back({"time", format_seconds(plan.seconds)});
    if (const auto done =
            arguments.html == "-" ? write_text("-", memory_map_html(map)) : write_memory_map(arguments.html, map);
        !done)
      return refuse_plan(done.error().message(), kBadInput);
  }
  return kFits;
}

int run_plan(const PlanArguments& arguments) {
  auto table = read_problem(arguments.problem);
  if (!table) return refuse_plan(table.error().message(), kBadInput);
  if (const auto applied = apply(arguments, table->problem); !applied)
    return refuse_plan(applied.error().message(), kBadInput);

  const auto found = find_plan(table->problem, arguments);
  std::vector<Comparison> rows;
  if (arguments.compare && (found || exit_code_of(found.error()) != kBadInput)) {
    auto compared = compare_strategies(table->problem, arguments);
    if (!compared) return refuse_plan(compared.error().message(), exit_code_of(compared.error()));
    rows = *std::move(compared);
  }
  // If a file is written to standard output, nothing else is.
  const bool talk = arguments.json != "-" && arguments.output != "-" && arguments.html != "-";
  if (!found) {
    const int code = exit_code_of(found.error());
    if (talk && !rows.empty()) print_comparison(rows, nullptr);
    if (!arguments.json.empty() && code != kBadInput) {
      if (const auto done = write_text(arguments.json, json_of(found.error(), table->problem)); !done)
        return refuse_plan(done.error().message(), kBadInput);
    }
    std::string text = found.error().message();
    // Sizes in the message are rounded; these are exact.
    if (const auto bound = plan_lower_bound(table->problem); bound && table->problem.capacity)
      text += fmt::format(" (lower bound {} bytes, capacity {} bytes)", with_thousands(*bound),
                          with_thousands(*table->problem.capacity));
    return refuse_plan(text, code);
  }
  if (talk) {
    print_summary(*table, *found);
    if (!rows.empty()) print_comparison(rows, &*found);
  }
  const int code = write_files(arguments, *table, *found, rows);
  if (code != kFits || !talk) return code;
  if (!arguments.output.empty()) fmt::print("offsets      {}\n", shown(arguments.output));
  if (!arguments.json.empty()) fmt::print("json         {}\n", shown(arguments.json));
  if (!arguments.html.empty()) fmt::print("memory map   {}\n", shown(arguments.html));
  return code;
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<PlanArguments>();
  Command command(app, "plan", "Decide where buffers go, given what lives when");
  command.footer(
      "The problem is a table with the columns id, lower, upper, size (levels [lower, upper), bytes) and optionally\n"
      "alignment, offset, gaps, hint, label, bank.\n"
      "Exit status: 0 a plan (within the capacity, if given), 2 bad input, 3 none found within the limit,\n"
      "4 proven impossible.");
  command.option("problem", arguments->problem, "PROBLEM.csv, or - for standard input").required();
  command.option("--capacity", arguments->capacity, "Bytes the plan may use: 1048576, 256KiB, 1.5MiB");
  command.option("--time-limit", arguments->time_limit, "Seconds to search").not_negative();
  command.option("--work-limit", arguments->work_limit, "Search nodes to visit: the same plan on every machine");
  command.option("--threads", arguments->threads, "Threads, 0 for one a core");
  command.option("--seed", arguments->seed, "Seed of the search");
  command.option("--align", arguments->alignment, "Least alignment of every offset, a power of two");
  command.option("--bank", arguments->banks, "A bank of memory, NAME=BYTES, in order of preference; repeat");
  command.option("--max-block", arguments->max_block, "Largest block; a larger plan is split");
  command.flag("--smallest", arguments->smallest, "With a capacity: go on after the first plan that fits");
  command.flag("--compare", arguments->compare, "Print what each named strategy reaches");
  command.option("--output", arguments->output, "OUT.csv: the problem plus offsets, or -");
  command.option("--json", arguments->json, "The plan as JSON, to a file or -");
  command.option("--html", arguments->html, "The memory map, one HTML file");
  command.action([arguments, &exit_code] { exit_code = run_plan(*arguments); });
}

}  // namespace berth::cli
