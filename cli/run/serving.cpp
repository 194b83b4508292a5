#include "run/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/try.h"
#include "berth/plan/memory_map.h"
#include "run/child_process.h"
#include "run/worker.h"
#include "streams.h"

namespace berth::cli {
namespace {

using Json = nlohmann::json;

double part_of(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(std::max<std::uint64_t>(b, 1));
}

Result<Json> serve(const RunSettings& settings, const MixSettings& mix, const char* role, const std::stop_token& stop) {
  WorkerTask task = make_task(settings, role);
  task.shapes = mix.shapes;
  task.concurrency = mix.concurrency;
  task.runs = settings.runs;
  BERTH_TRY_ASSIGN(ChildProcess process, ChildProcess::start({"run-worker"}, stop));
  return process.ask(task);
}

MixSide side_of(const Json& answer) {
  return {.held = answer.at("held").get<std::uint64_t>(),
          .in_use = answer.at("in_use").get<std::uint64_t>(),
          .process_peak = answer.at("process_peak").get<std::uint64_t>(),
          .runs_per_second = answer.at("runs").get<double>() / std::max(1e-9, answer.at("seconds").get<double>()),
          .cpu_ms = answer.at("cpu_ms").get<double>()};
}

// What the worker sent of a shape's plan; empty if it has none.
void read_plan(const Json& json, ModelPlan& plan) {
  if (!json.is_object()) return;
  for (const Json& each : json.at("requests"))
    plan.trace.requests.push_back({.bytes = each.at(0).get<std::uint64_t>(),
                                   .alignment = each.at(1).get<std::uint64_t>(),
                                   .released_at = each.at(2).get<std::uint32_t>(),
                                   .kept = each.at(3).get<bool>()});
  plan.trace.releases = json.at("releases").get<std::vector<std::uint32_t>>();
  plan.plan.size = json.at("size");
  plan.plan.lower_bound = json.at("lower_bound");
  plan.plan.optimal = plan.plan.size == plan.plan.lower_bound;
  plan.plan.strategy = json.at("strategy").get<std::string>();
  const PlanProblem problem = plan_problem(plan.trace);
  plan.plan.slots.resize(problem.lifetimes.size());
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i)
    if (const Json& offset = json.at("offsets").at(i); !offset.is_null())
      plan.plan.slots[i] = {.offset = offset.get<std::uint64_t>(), .bytes = problem.lifetimes[i].bytes, .block = 0};
  if (plan.plan.size != 0) plan.plan.blocks.push_back({.bytes = plan.plan.size});
}

std::string verdict(const MixReport& report) {
  return report.identical() ? "outputs identical" : "OUTPUTS DIFFER";
}

}  // namespace

bool MixReport::identical() const {
  return std::all_of(shapes.begin(), shapes.end(), [](const MixShape& shape) { return shape.identical; });
}

Result<std::vector<std::vector<std::int64_t>>> parse_shapes(std::string_view text) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const auto refuse = [&] {
    return Error::with_text(Code::kInvalidArgument, Layer::kProgram,
                            fmt::format("--shapes {}: write it as 320x320,640x480", text));
  };
  std::vector<std::vector<std::int64_t>> shapes(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    std::int64_t size = 0;
    const auto [stop, failed] = std::from_chars(at, end, size);
    if (failed != std::errc{} || size < 1 || size > kMost) return refuse();
    shapes.back().push_back(size);
    if (stop == end) return shapes;
    if (*stop != 'x' && *stop != ',') return refuse();
    if (*stop == ',') shapes.emplace_back();
    at = stop + 1;
  }
}

Result<MixReport> measure_mix(const RunSettings& settings, const MixSettings& mix, const Progress& progress,
                              std::stop_token stop) {
  if (settings.models.size() != 1)
    return Error(Code::kInvalidArgument, Layer::kProgram, "--shapes and --concurrency take one model, not {}",
                 settings.models.size());
  std::error_code failed;
  if (!std::filesystem::exists(settings.models[0], failed))
    return Error::with_text(Code::kIo, Layer::kProgram, settings.models[0] + ": not found; name an .onnx file");
  progress("running with the engine's own arena", 0);
  BERTH_TRY_ASSIGN(const Json stock, serve(settings, mix, "serve-stock", stop));
  progress("running with Berth", 0.5);
  BERTH_TRY_ASSIGN(const Json berth, serve(settings, mix, "serve-berth", stop));
  MixReport report;
  report.engine = stock.at("engine");
  report.runs = berth.at("runs");
  report.concurrency = mix.concurrency;
  report.stock = side_of(stock);
  report.berth = side_of(berth);
  report.requests = berth.at("requests");
  report.planned = berth.at("planned");
  report.recorded_runs = berth.at("recorded_runs");
  report.arenas = berth.at("arenas");
  const std::string name = std::filesystem::path(settings.models[0]).filename().string();
  for (std::size_t i = 0; i < berth.at("shapes").size(); ++i) {
    const Json &theirs = stock.at("shapes").at(i), &ours = berth.at("shapes").at(i);
    MixShape shape;
    shape.plan.name = name;
    shape.plan.inputs = ours.at("inputs");
    read_plan(ours.at("plan"), shape.plan);
    shape.stock_ms = theirs.at("ms");
    shape.berth_ms = ours.at("ms");
    shape.identical = theirs.at("repeats").get<bool>() && ours.at("repeats").get<bool>() &&
                      theirs.at("outputs") == ours.at("outputs");
    report.shapes.push_back(std::move(shape));
  }
  const std::size_t count = report.shapes.size();
  report.title = fmt::format("{}, {} shape{}, {} at a time", name, count, count == 1 ? "" : "s", mix.concurrency);
  progress("done", 1);
  return report;
}

std::string mix_text(const MixReport& report, const ReportStyle& style, const std::string& map_file) {
  const char* bold = style.color ? "\033[1m" : "";
  const char* dim = style.color ? "\033[2m" : "";
  const char* good = style.color ? "\033[32m" : "";
  const char* plain = style.color ? "\033[0m" : "";
  const std::string runs = fmt::format("{} runs, {}", report.runs, verdict(report));
  std::string text = fmt::format("{}{}{}  {}\n\n", bold, padded(in_one_line(report.title), 60), plain, runs);
  text += fmt::format("{}{:<16} {:<12}{:<12}{:<14}{:<22}{:<12}{}{}\n", dim, "", "held", "in use", "process peak", "",
                      "runs/s", "processor time", plain);
  const auto row = [&](const char* name, const MixSide& side, const char* color) {
    const double part = part_of(side.held, std::max(report.stock.held, report.berth.held));
    text += fmt::format("{:<16} {:<12}{:<12}{:<14}{}{}{}{:<12.1f}{:.1f} ms\n", name, format_bytes(side.held),
                        format_bytes(side.in_use), format_bytes(side.process_peak), color,
                        padded(bar(part, style.unicode, kBarCells), kBarCells + 2), plain, side.runs_per_second,
                        side.cpu_ms);
  };
  row("ONNX Runtime", report.stock, "");
  row("with Berth", report.berth, good);
  text += fmt::format("{:<16} {}{:<12}{}{:.1f} % of requests planned, {} runs recorded, {} arena{}\n\n", "", bold,
                      fmt::format("{:.1f}x less", part_of(report.stock.held, report.berth.held)), plain,
                      100 * part_of(report.planned, report.requests), report.recorded_runs, report.arenas,
                      report.arenas == 1 ? "" : "s");
  text += fmt::format("{}{:<30} {:<12}{:<14}{:<20}{}{}\n", dim, "shape", "plan", "lower bound", "latency", "outputs",
                      plain);
  for (const MixShape& shape : report.shapes)
    text += fmt::format("{} {:<12}{:<14}{:<20}{}\n", padded(in_one_line(shape.plan.inputs), 30),
                        format_bytes(shape.plan.plan.size), format_bytes(shape.plan.plan.lower_bound),
                        fmt::format("{:.1f} -> {:.1f} ms", shape.stock_ms, shape.berth_ms),
                        shape.identical ? "identical" : "DIFFER");
  if (!map_file.empty()) text += fmt::format("\n{:<28}{}\n", "memory map", shown(map_file));
  return text;
}

nlohmann::ordered_json mix_json(const MixReport& report) {
  const auto side = [](const MixSide& each) {
    return nlohmann::ordered_json{{"held_bytes", each.held},
                                  {"in_use_bytes", each.in_use},
                                  {"process_peak_bytes", each.process_peak},
                                  {"runs_per_second", each.runs_per_second},
                                  {"cpu_ms", each.cpu_ms}};
  };
  nlohmann::ordered_json json = {{"title", report.title},
                                 {"engine", {{"name", "onnxruntime"}, {"version", report.engine}}},
                                 {"runs", report.runs},
                                 {"concurrency", report.concurrency},
                                 {"identical", report.identical()},
                                 {"requests", report.requests},
                                 {"planned_requests", report.planned},
                                 {"recorded_runs", report.recorded_runs},
                                 {"arenas", report.arenas},
                                 {"stock", side(report.stock)},
                                 {"berth", side(report.berth)}};
  for (const MixShape& shape : report.shapes)
    json["shapes"].push_back({{"inputs", shape.plan.inputs},
                              {"requests", shape.plan.trace.requests.size()},
                              {"live_peak_bytes", shape.plan.trace.live_peak()},
                              {"plan_bytes", shape.plan.plan.size},
                              {"lower_bound_bytes", shape.plan.plan.lower_bound},
                              {"stock_ms", shape.stock_ms},
                              {"berth_ms", shape.berth_ms},
                              {"identical", shape.identical}});
  return json;
}

std::string mix_map_page(const MixReport& report) {
  MemoryMap map;
  map.title = report.title;
  map.subtitle = fmt::format("{} runs of ONNX Runtime {}; {} held -> {}", report.runs, report.engine,
                             format_bytes(report.stock.held), format_bytes(report.berth.held));
  map.time_unit = "request";
  for (const MixShape& shape : report.shapes) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < shape.plan.trace.requests.size(); ++i)
      names.push_back(fmt::format("request {}, {}", i, format_bytes(shape.plan.trace.requests[i].bytes)));
    MapPanel panel = map_panel(plan_problem(shape.plan.trace), shape.plan.plan, names);
    panel.title = shape.plan.inputs;
    map.panels.push_back(std::move(panel));
  }
  return memory_map_html(map);
}

}  // namespace berth::cli
