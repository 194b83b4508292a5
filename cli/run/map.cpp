#include "run/map.h"

#include <fmt/format.h>

#include <algorithm>

#include "berth/plan/memory_map.h"

namespace berth::cli {
namespace {

std::string plural(std::uint64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

MapPanel berth_panel(const RunReport& report, const ModelPlan& model) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.trace.requests.size(); ++i)
    names.push_back(fmt::format("request {}, {}", i, format_bytes(model.trace.requests[i].bytes)));
  MapPanel panel = map_panel(plan_problem(model.trace), model.plan, names);
  panel.title = report.plans.size() == 1 ? "With Berth" : "With Berth: " + model.name;
  return panel;
}

// What is known about the engine's own arena: how much it held and had in use, and when the same requests were live.
MapPanel stock_panel(const RunReport& report, const ModelPlan& model) {
  MapPanel panel;
  panel.title = "ONNX Runtime's own arena";
  panel.held = report.stock.held;
  panel.bound = report.lower_bound;
  const std::size_t n = model.layout.size();
  std::uint64_t top = report.stock.held;
  for (std::size_t i = 0; i < n; ++i) {
    const ReplayRequest& request = model.trace.requests[i];
    const auto last = request.released_at == ReplayRequest::kNeverReleased ? n : request.released_at;
    panel.rectangles.push_back({.node = static_cast<std::uint32_t>(i),
                                .block = 0,
                                .offset = model.layout[i],
                                .bytes = request.bytes,
                                .first = static_cast<std::int64_t>(i),
                                .last = static_cast<std::int64_t>(last)});
    panel.names.push_back(fmt::format("request {}, {}", i, format_bytes(request.bytes)));
    top = std::max(top, model.layout[i] + request.bytes);
  }
  panel.blocks.push_back({.name = "arena", .bytes = top});
  panel.facts = {{"held", format_bytes(report.stock.held)}, {"in use", format_bytes(report.stock.in_use)}};
  panel.notes.emplace_back(
      "Where the engine's own arena put the same requests when they were made of it one by one. Its regions are drawn "
      "one above the other; what it holds without having handed it out is empty space.");
  return panel;
}

}  // namespace

Result<std::string> memory_map_page(const RunReport& report) {
  MemoryMap map;
  map.title = report.title;
  map.subtitle = fmt::format("{} of ONNX Runtime {}, {}; {} held -> {}", plural(report.runs, "run"), report.engine,
                             plural(static_cast<std::uint64_t>(report.threads), "thread"),
                             format_bytes(report.stock.held), format_bytes(report.berth.held));
  map.time_unit = "request";
  for (const ModelPlan& model : report.plans) map.panels.push_back(berth_panel(report, model));
  if (report.plans.size() == 1 && !report.plans[0].layout.empty())
    map.panels.push_back(stock_panel(report, report.plans[0]));
  return memory_map_html(map);
}

}  // namespace berth::cli
