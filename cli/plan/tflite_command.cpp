// `berth tflite MODEL --output PLANNED`: adds a memory plan to a TensorFlow Lite model, for TensorFlow Lite Micro.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "base/try.h"
#include "berth/engines/tflite.h"
#include "berth/plan/memory_map.h"
#include "command_line.h"
#include "commands.h"
#include "streams.h"
#include "terminal.h"

namespace berth::cli {

using namespace internal;

namespace {

struct TfliteArguments {
  std::string model, output, json, html;
  bool reorder = false;
  double time_limit = 5;
};

Result<std::vector<std::byte>> read_file(const std::string& path) {
  BERTH_TRY_ASSIGN(const std::string text, read_whole_file(path));
  const auto bytes = std::as_bytes(std::span(text));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string summary(const engines::TflitePlan& planned) {
  std::string text =
      fmt::format("arena {} -> {} bytes ({}", with_thousands(planned.stock_bytes), with_thousands(planned.plan.size),
                  planned.plan.size == planned.order_bound ? "proven optimal for every order"
                  : planned.plan.optimal
                      ? "proven optimal for this order"
                      : fmt::format("at most {:.2f} % above the optimum of this order", planned.plan.gap() * 100));
  if (planned.reordered) text += fmt::format("; the given order needs {}", with_thousands(planned.given_bytes));
  text += fmt::format(")\n{} tensors of {} operators are planned", planned.problem.lifetimes.size(), planned.operators);
  if (planned.left_to_runtime > 0)
    text += fmt::format("; {} whose size the file does not tell are left to the runtime", planned.left_to_runtime);
  if (planned.had_plan) text += "; the plan that the model carried is replaced";
  return text + "\n";
}

nlohmann::json as_json(const engines::TflitePlan& planned) {
  nlohmann::json tensors = nlohmann::json::array();
  for (std::size_t i = 0; i < planned.problem.lifetimes.size(); ++i) {
    const Lifetime& life = planned.problem.lifetimes[i];
    tensors.push_back({{"name", life.label},
                       {"bytes", life.bytes},
                       {"first", life.first},
                       {"last", life.last},
                       {"offset", planned.plan.slots[i].offset}});
  }
  return {{"stock_bytes", planned.stock_bytes},
          {"given_order_bytes", planned.given_bytes},
          {"bytes", planned.plan.size},
          {"lower_bound", planned.plan.lower_bound},
          {"order_bound", planned.order_bound},
          {"optimal", planned.plan.optimal},
          {"reordered", planned.reordered},
          {"replaced_a_plan", planned.had_plan},
          {"left_to_runtime", planned.left_to_runtime},
          {"operators", planned.operators},
          {"tensors", std::move(tensors)}};
}

Result<void> run_tflite(const TfliteArguments& arguments) {
  BERTH_TRY_ASSIGN(const std::vector<std::byte> model, read_file(arguments.model));
  Progress progress("planning");
  engines::TfliteOptions options{.reorder = arguments.reorder};
  options.plan.time_limit = arguments.time_limit;
  options.plan.progress = [&](const PlanProgress& now) {
    progress.update(std::nullopt, fmt::format("{} bytes", with_thousands(now.best)));
  };
  BERTH_TRY_ASSIGN(const engines::TflitePlan planned, engines::plan_tflite(model, options));
  if (!arguments.output.empty()) BERTH_TRY(write_whole_file(arguments.output, as_text(planned.file)));
  if (!arguments.html.empty())
    BERTH_TRY(write_memory_map(
        arguments.html,
        {.title = arguments.model, .time_unit = "operator", .panels = {map_panel(planned.problem, planned.plan)}}));
  if (!arguments.json.empty()) BERTH_TRY(write_text(arguments.json, json_text(as_json(planned))));
  if (arguments.json != "-") fmt::print("{}", summary(planned));
  return {};
}

}  // namespace

void add_tflite_command(CLI::App& app, int& exit_code) {
  Command command(app, "tflite", "Add a memory plan to a TensorFlow Lite model, for TensorFlow Lite Micro");
  auto arguments = std::make_shared<TfliteArguments>();
  command.option("model", arguments->model, "A .tflite file").required();
  command.option("--output", arguments->output, "Write the model with its plan to this file");
  command.flag("--reorder", arguments->reorder, "Also choose the order of the operators");
  command.option("--time-limit", arguments->time_limit, "Seconds to search for a smaller plan")
      .not_negative()
      .show_default();
  command.option("--json", arguments->json, "Write the plan as JSON to this file; - for standard output");
  command.option("--html", arguments->html, "Write the memory map to this file");
  command.footer(
      "The figures are those of the tensors. Kernels may request scratch memory, which the runtime places around the "
      "plan.\nExit codes: 0 planned; 2 the model cannot be read or planned, with the reason.");
  command.action([=, &exit_code] {
    if (auto done = run_tflite(*arguments); !done) exit_code = complain("tflite", done.error().message(), 2);
  });
}

}  // namespace berth::cli
