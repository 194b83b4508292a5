// `berth run MODEL...`: a model in ONNX Runtime, stock and with Berth as its memory, side by side.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/try.h"
#include "command_line.h"
#include "commands.h"
#include "interrupt.h"
#include "run/default_model.h"
#include "run/inputs.h"
#include "run/map.h"
#include "run/measure.h"
#include "run/report.h"
#include "run/serving.h"
#include "run/worker.h"
#include "streams.h"

namespace berth::cli {
namespace {

namespace fs = std::filesystem;

struct RunArguments {
  RunSettings settings;
  std::vector<std::string> dims, inputs;
  std::string plan_cache, html, json;
  std::string weights = "map", order = "memory";
  std::optional<Option> plan_cache_option, html_option, concurrency_option;
  std::string shapes;
  MixSettings mix;
  bool is_mix() const { return !shapes.empty() || concurrency_option->given(); }
};

// "name=value", split at the last '=': names may have one.
Result<std::pair<std::string, std::string>> split(const std::string& text, const char* option, const char* form) {
  const std::size_t at = text.rfind('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size())
    return refuse(fmt::format("{} {}: write it as {}", option, text, form));
  return std::pair(text.substr(0, at), text.substr(at + 1));
}

Result<void> parse_pairs(RunArguments& arguments) {
  for (const std::string& text : arguments.dims) {
    BERTH_TRY_ASSIGN(const auto pair, split(text, "--dim", "NAME=N"));
    std::int64_t value = 0;
    const char* end = pair.second.data() + pair.second.size();
    const auto [stop, failed] = std::from_chars(pair.second.data(), end, value);
    if (failed != std::errc{} || stop != end || value < 0)
      return refuse(fmt::format("--dim {}: {} is not a size", text, pair.second));
    arguments.settings.dims[pair.first] = value;
  }
  for (const std::string& text : arguments.inputs) {
    BERTH_TRY_ASSIGN(const auto pair, split(text, "--input", "NAME=FILE.npy"));
    arguments.settings.inputs[pair.first] = pair.second;
  }
  return {};
}

// A line that is redrawn in place on a terminal; nothing elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool shown) : shown_(shown) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view step, double done) {
    if (!shown_) return;
    const auto cells = static_cast<std::size_t>(done * 24);
    fmt::print(stderr, "\r\033[K[{}{}] {}", std::string(cells, '='), std::string(24 - cells, ' '), step);
    std::fflush(stderr);
  }
  void clear() {
    if (!shown_) return;
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }

 private:
  bool shown_;
};

bool wants_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      const std::string_view locale(value);
      return locale != "C" && locale != "POSIX";
    }
  return true;
}

// As write_text(), in a folder that is made if it is missing.
Result<void> write_in_folder(const std::string& path, const std::string& text) {
  std::error_code ignored;
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) fs::create_directories(folder, ignored);
  return write_text(path, text);
}

// Writes the map and the report: JSON alone on standard output, or the text.
Result<void> write_report(const RunArguments& arguments, const std::string& map_file, const std::string& page,
                          const nlohmann::ordered_json& json, const std::string& text) {
  if (!map_file.empty()) BERTH_TRY(write_in_folder(map_file, page));
  if (arguments.json == "-") return write_text("-", json_text(json));
  if (!arguments.json.empty()) BERTH_TRY(write_in_folder(arguments.json, json_text(json)));
  fmt::print("{}", text);
  return {};
}

Result<int> run_mix(const RunArguments& arguments, const std::string& map_file, const ReportStyle& style,
                    const std::stop_token& stop) {
  for (const auto& [option, given] : {std::pair("--plan-cache", arguments.plan_cache_option->given()),
                                      std::pair("--output", !arguments.settings.output.empty())})
    if (given)
      return refuse(fmt::format("{} does not go with --shapes and --concurrency: leave one of them out", option));
  MixReport report;
  {
    ProgressLine line(isatty(STDERR_FILENO) != 0 && arguments.json != "-");
    BERTH_TRY_ASSIGN(
        report, measure_mix(
                    arguments.settings, arguments.mix, [&](auto step, double done) { line.show(step, done); }, stop));
  }
  BERTH_TRY(
      write_report(arguments, map_file, mix_map_page(report), mix_json(report), mix_text(report, style, map_file)));
  return report.identical() ? 0 : 1;
}

Result<int> run(RunArguments arguments, const std::stop_token& stop) {
  BERTH_TRY(parse_pairs(arguments));
  RunSettings& settings = arguments.settings;
  settings.map_weights = arguments.weights == "map";
  settings.find_order = arguments.order == "memory";
  std::string closing;
  const bool is_default = settings.models.empty();
  if (is_default) {
    BERTH_TRY_ASSIGN(const DefaultModel model, default_model());
    settings.models = {model.path};
    settings.title = model.title;
    for (const auto& [name, size] : model.dims) settings.dims.try_emplace(name, size);
    if (!arguments.dims.empty() || !arguments.inputs.empty()) settings.title.clear();
    closing = "Try your own: ./run run model.onnx      All commands: ./run --help";
  }
  if (arguments.plan_cache_option->given())
    settings.plan_cache =
        !arguments.plan_cache.empty() ? arguments.plan_cache : fs::absolute(settings.models[0]).parent_path().string();
  std::string map_file = arguments.html;
  if (map_file.empty() && (is_default || arguments.html_option->given()))
    map_file = "out/" + fs::path(settings.models[0]).stem().string() + ".html";

  const bool terminal = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  const ReportStyle style{.color = terminal, .unicode = wants_unicode()};
  if (arguments.is_mix()) {
    if (!arguments.shapes.empty()) {
      BERTH_TRY_ASSIGN(arguments.mix.shapes, parse_shapes(arguments.shapes));
    }
    return run_mix(arguments, map_file, style, stop);
  }
  RunReport report;
  {
    ProgressLine line(isatty(STDERR_FILENO) != 0 && arguments.json != "-");
    BERTH_TRY_ASSIGN(report, measure_run(
                                 settings, [&](auto step, double done) { line.show(step, done); }, stop));
  }
  std::string page;
  if (!map_file.empty()) {
    BERTH_TRY_ASSIGN(page, memory_map_page(report));
  }
  BERTH_TRY(
      write_report(arguments, map_file, page, report_json(report), report_text(report, style, map_file, closing)));
  return report.identical() || !report.stock.repeats ? 0 : 1;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  Command command(app, "run", "Run a model in ONNX Runtime, stock and with Berth as its memory");
  command.footer(
      "Each model is run twice over, in processes of their own: with the engine's stock arena, and from one planned\n"
      "arena. Outputs are compared bit for bit. Exit code 0: identical; 1: they differ, or the run failed; 2: bad "
      "input.");
  auto arguments = std::make_shared<RunArguments>();
  RunSettings& settings = arguments->settings;
  command.option("model", settings.models, "ONNX files; several share one arena. None: a text detector");
  command.option("--dim", arguments->dims, "NAME=N: size of a symbolic dimension; INPUT.INDEX=N for a nameless one");
  command.option("--input", arguments->inputs, "NAME=FILE.npy: an input; without it, seeded random values");
  command.option("--seed", settings.seed, "Seed of the random inputs").show_default();
  command.option("--output", settings.output, "Folder for the outputs as .npy");
  command.option("--runs", settings.runs, "Timed runs of each side").show_default().between(1, 1000000);
  command.option("--threads", settings.threads, "The engine's threads inside an operator")
      .show_default()
      .between(1, 1024);
  command.option("--shapes", arguments->shapes,
                 "320x320,640x480,...: serve a mix of shapes; sizes of the symbolic dimensions, or of all");
  arguments->concurrency_option =
      command.option("--concurrency", arguments->mix.concurrency, "Runs at the same time, each on a thread of its own")
          .show_default()
          .between(1, 1024);
  command.option("--json", arguments->json, "File for the report as JSON; - for standard output alone");
  arguments->html_option =
      command.option("--html", arguments->html, "File for the memory map (default out/MODEL.html)").value_is_optional();
  arguments->plan_cache_option =
      command
          .option("--plan-cache", arguments->plan_cache,
                  "Folder that keeps plans and mappable models, so that the next start records nothing "
                  "(default: beside the model)")
          .value_is_optional();
  command.option("--weights", arguments->weights, "map: from the file, in place; copy: as the engine does")
      .one_of({"map", "copy"})
      .show_default();
  command.option("--order", arguments->order, "memory: execute in an order that needs less memory; file: as written")
      .one_of({"memory", "file"})
      .show_default();
  command.action([arguments, &exit_code] {
    const InterruptStop interrupt;
    const Result<int> result = run(*arguments, interrupt.token());
    if (result) {
      exit_code = *result;
      return;
    }
    const Code code = result.error().code();
    exit_code = complain("run", result.error().message(),
                         code == Code::kCancelled                                       ? 128 + interrupt.signal()
                         : code == Code::kInvalidArgument || code == Code::kInvalidData ? 2
                                                                                        : 1);
  });

  Command worker(app, "run-worker", "A process of berth run's");
  worker.hide();  // internal: left out of --help
  worker.action([&exit_code] { exit_code = serve_worker(); });
}

}  // namespace berth::cli
