#include "run/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "streams.h"

namespace berth::cli {
namespace {

std::string with_thousands(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string peak_over_weights(const SideReport& side, std::uint64_t weights) {
  return format_bytes(side.process_peak - std::min(side.process_peak, weights));
}

std::string proof(const RunReport& report) {
  if (report.plan_bytes == report.lower_bound) {
    const std::string when =
        report.planned_now ? fmt::format("planned and proven in {:.1f} ms", report.planning_ms) : "from the saved plan";
    return "optimal: equal to the lower bound, " + when;
  }
  const double gap =
      100.0 * static_cast<double>(report.plan_bytes - report.lower_bound) / static_cast<double>(report.lower_bound);
  return fmt::format("{:.2f} % above the lower bound of {}, planned in {:.1f} ms", gap,
                     format_bytes(report.lower_bound), report.planning_ms);
}

std::string verdict(const RunReport& report) {
  if (report.identical()) return "outputs identical";
  return report.stock.repeats ? "OUTPUTS DIFFER" : "the engine's own outputs vary";
}

// What the order of execution of one model gave.
std::string order_gain(const OrderFound& order) {
  if (order.peak < order.as_written_peak) {
    const char* how = !order.reordered ? "tensors released at their last use"
                      : order.reuse    ? "nodes in another order"
                                       : "nodes in another order, tensors released at their last use";
    return fmt::format("live peak {} -> {}: {}", format_bytes(order.as_written_peak), format_bytes(order.peak), how);
  }
  if (!order.note.empty()) return "as written: " + order.note;
  return order.lower_bound == order.as_written_peak ? "as written: no order needs less"
                                                    : "as written: no order was found that needs less";
}

nlohmann::ordered_json order_json(const OrderFound& order) {
  nlohmann::ordered_json json = {{"as_written_peak_bytes", order.as_written_peak},
                                 {"live_peak_bytes", order.peak},
                                 {"lower_bound_bytes", order.lower_bound},
                                 {"reordered", order.reordered},
                                 {"engine_reuse", order.reuse},
                                 {"recorded", order.recorded}};
  if (!order.note.empty()) json["note"] = order.note;
  return json;
}

nlohmann::ordered_json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"p10", spread.low}, {"p90", spread.high}};
}

nlohmann::ordered_json side_json(const SideReport& side) {
  return {{"held_bytes", side.held},
          {"in_use_bytes", side.in_use},
          {"process_peak_bytes", side.process_peak},
          {"load_ms", side.load_ms},
          {"page_faults", side.faults},
          {"page_faults_last_run", side.faults_steady},
          {"latency_ms", spread_json(side.latency_ms)},
          {"cpu_ms", spread_json(side.cpu_ms)}};
}

}  // namespace

std::string bar(double part, bool unicode, std::size_t cells) {
  const double full = part * static_cast<double>(cells);
  if (!unicode) return std::string(std::max<std::size_t>(1, static_cast<std::size_t>(full + 0.5)), '#');
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(full * 8)));
  std::string text;
  for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

std::string padded(std::string text, std::size_t width) {
  std::size_t characters = 0;
  for (const char c : text) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  if (characters < width) text.append(width - characters, ' ');
  return text;
}

std::string report_text(const RunReport& report, const ReportStyle& style, const std::string& map_file,
                        const std::string& closing) {
  const char* bold = style.color ? "\033[1m" : "";
  const char* dim = style.color ? "\033[2m" : "";
  const char* good = style.color ? "\033[32m" : "";
  const char* plain = style.color ? "\033[0m" : "";
  const std::string runs = fmt::format("{} runs, {}", report.runs, verdict(report));
  std::string text;
  const std::string title = in_one_line(report.title);  // with names out of the model
  const std::size_t title_width = std::max<std::size_t>(title.size() + 2, 86 - std::min<std::size_t>(86, runs.size()));
  text += fmt::format("{}{}{}{}\n\n", bold, padded(title, title_width), plain, runs);
  text += fmt::format("{}{:<16} {:<12}{:<12}{:<12}{:<22}{}{}\n", dim, "", "held", "in use", "live peak", "", "latency",
                      plain);
  const auto row = [&](const char* name, const SideReport& side, std::uint64_t live_peak, const char* color) {
    const double part = static_cast<double>(side.held) /
                        static_cast<double>(std::max<std::uint64_t>(1, std::max(report.stock.held, report.berth.held)));
    text += fmt::format("{:<16} {:<12}{:<12}{:<12}{}{}{}{:.1f} ms\n", name, format_bytes(side.held),
                        format_bytes(side.in_use), format_bytes(live_peak), color,
                        padded(bar(part, style.unicode, kBarCells), kBarCells + 2), plain, side.latency_ms.median);
  };
  row("ONNX Runtime", report.stock, report.stock_live_peak, "");
  row("with Berth", report.berth, report.live_peak, good);
  text += fmt::format("{:<16} {}{:<12}{}{}\n\n", "", bold, fmt::format("{:.1f}x less", report.ratio()), plain,
                      proof(report));

  const auto fact = [&](const char* name, const std::string& value) { text += fmt::format("{:<28}{}\n", name, value); };
  fact("process peak over weights", peak_over_weights(report.stock, report.model_bytes) + " -> " +
                                        peak_over_weights(report.berth, report.model_bytes) +
                                        (report.weights_mapped ? "   (weights mapped from the file)" : ""));
  fact("page faults while running", with_thousands(report.stock.faults) + " -> " + with_thousands(report.berth.faults));
  fact("latency, middle 80 %",
       fmt::format("{:.1f} to {:.1f} ms -> {:.1f} to {:.1f} ms", report.stock.latency_ms.low,
                   report.stock.latency_ms.high, report.berth.latency_ms.low, report.berth.latency_ms.high));
  fact("processor time of a run",
       fmt::format("{:.1f} ms -> {:.1f} ms", report.stock.cpu_ms.median, report.berth.cpu_ms.median));
  for (const ModelPlan& model : report.plans)
    if (model.order.recorded > 0) fact("order of execution", shown(order_gain(model.order)));
  if (!report.order_note.empty()) fact("order of execution", "as written: " + shown(report.order_note));
  if (report.deviated > 0)
    fact("off the plan", fmt::format("{} requests in {} runs, served by the pool; {} renewals", report.deviated,
                                     report.deviating_runs, report.renewals));
  if (!report.weights_note.empty()) fact("weights not mapped", shown(report.weights_note));
  if (!map_file.empty()) fact("memory map", shown(map_file));
  if (!closing.empty()) text += closing + "\n";
  return text;
}

nlohmann::ordered_json report_json(const RunReport& report) {
  nlohmann::ordered_json json = {{"title", report.title},
                                 {"engine", {{"name", "onnxruntime"}, {"version", report.engine}}},
                                 {"runs", report.runs},
                                 {"threads", report.threads},
                                 {"identical", report.identical()},
                                 {"model_bytes", report.model_bytes},
                                 {"live_peak_bytes", report.live_peak},
                                 {"stock_live_peak_bytes", report.stock_live_peak},
                                 {"lower_bound_bytes", report.lower_bound},
                                 {"plan_bytes", report.plan_bytes},
                                 {"optimal", report.plan_bytes == report.lower_bound},
                                 {"planned_now", report.planned_now},
                                 {"planning_ms", report.planning_ms},
                                 {"recording_process_peak_bytes", report.recording_peak},
                                 {"requests_per_run", report.requests},
                                 {"deviated_requests", report.deviated},
                                 {"deviating_runs", report.deviating_runs},
                                 {"renewals", report.renewals},
                                 {"weights", report.weights_mapped ? "mapped" : "copied"},
                                 {"held_ratio", report.ratio()},
                                 {"stock", side_json(report.stock)},
                                 {"berth", side_json(report.berth)}};
  if (!report.weights_note.empty()) json["weights_note"] = report.weights_note;
  if (!report.order_note.empty()) json["order_note"] = report.order_note;
  for (const ModelPlan& model : report.plans) {
    nlohmann::ordered_json row = {{"name", model.name},
                                  {"inputs", model.inputs},
                                  {"requests", model.trace.requests.size()},
                                  {"live_peak_bytes", model.trace.live_peak()},
                                  {"plan_bytes", model.plan.size},
                                  {"lower_bound_bytes", model.plan.lower_bound},
                                  {"strategy", model.plan.strategy}};
    if (model.order.recorded > 0) row["order"] = order_json(model.order);
    json["models"].push_back(std::move(row));
  }
  return json;
}

}  // namespace berth::cli
