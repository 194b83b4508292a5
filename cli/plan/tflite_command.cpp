// `berth tflite MODEL --output PLANNED`: adds a memory plan to a TensorFlow Lite model, for TensorFlow Lite Micro.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/try.h"
#include "berth/engines/tflite.h"
#include "berth/plan/memory_map.h"
#include "command_line.h"
#include "commands.h"
#include "terminal.h"

namespace berth::cli {

using namespace internal;

namespace {

struct Arguments {
  std::string model, output, json, html;
  bool reorder = false;
  double time_limit = 5;
};

Result<std::vector<std::byte>> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in.good() && !in.eof())
    return Error::with_text(Code::kIo, Layer::kProgram, path + ": cannot be read; is it a file?");
  const auto bytes = std::as_bytes(std::span(text));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<void> write_file(const std::string& path, std::span<const std::byte> bytes) {
  BERTH_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  BERTH_TRY(file.write(bytes));
  return file.commit(false);
}

std::string summary(const engines::TflitePlan& planned) {
  std::string text = fmt::format(
      "arena {} -> {} bytes ({}", with_thousands(planned.stock_bytes), with_thousands(planned.plan.size),
      planned.plan.optimal ? "proven optimal for this order"
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
  return {{"stock_bytes", planned.stock_bytes},  {"given_order_bytes", planned.given_bytes},
          {"bytes", planned.plan.size},          {"lower_bound", planned.plan.lower_bound},
          {"optimal", planned.plan.optimal},     {"reordered", planned.reordered},
          {"replaced_a_plan", planned.had_plan}, {"left_to_runtime", planned.left_to_runtime},
          {"operators", planned.operators},      {"tensors", std::move(tensors)}};
}

Result<void> run(const Arguments& arguments) {
  BERTH_TRY_ASSIGN(const std::vector<std::byte> model, read_file(arguments.model));
  Progress progress("planning");
  engines::TfliteOptions options{.reorder = arguments.reorder};
  options.plan.time_limit = arguments.time_limit;
  options.plan.progress = [&](const PlanProgress& now) {
    progress.update(std::nullopt, fmt::format("{} bytes", with_thousands(now.best)));
  };
  BERTH_TRY_ASSIGN(const engines::TflitePlan planned, engines::plan_tflite(model, options));
  if (!arguments.output.empty()) BERTH_TRY(write_file(arguments.output, planned.file));
  if (!arguments.html.empty())
    BERTH_TRY(write_memory_map(
        arguments.html,
        {.title = arguments.model, .time_unit = "operator", .panels = {map_panel(planned.problem, planned.plan)}}));
  const std::string text = as_json(planned).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (arguments.json == "-")
    fmt::print("{}", text);
  else if (!arguments.json.empty())
    BERTH_TRY(write_file(arguments.json, std::as_bytes(std::span(text))));
  if (arguments.json != "-") fmt::print("{}", summary(planned));
  return {};
}

}  // namespace

void add_tflite_command(CLI::App& app, int& exit_code) {
  Command command(app, "tflite", "Add a memory plan to a TensorFlow Lite model, for TensorFlow Lite Micro");
  auto arguments = std::make_shared<Arguments>();
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
    if (auto done = run(*arguments); !done) {
      fmt::print(stderr, "berth tflite: {}\n", done.error().message());
      exit_code = 2;
    }
  });
}

}  // namespace berth::cli
