#include "explain/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "base/utf8.h"
#include "terminal.h"

namespace berth::cli {
namespace {

TorchSettings recorded_settings(const RecordedAllocator& recorded) {
  return {.expandable = recorded.expandable,
          .max_split_bytes = recorded.max_split_bytes,
          .parts = recorded.parts,
          .made = recorded.is_complete && !recorded.expandable ? &recorded.made : nullptr,
          .oldest_first = false};
}

// Runs the model of the recorded allocator. A snapshot does not say which of equal free blocks its version of PyTorch
// took: the rule is taken that leads to what was recorded.
void explain_recorded(const RequestTrace& trace, Explanation& result) {
  const RecordedAllocator& recorded = *trace.recorded;
  TorchSettings settings = recorded_settings(recorded);
  for (const bool oldest_first : {false, true}) {
    settings.oldest_first = oldest_first;
    const auto model = make_torch_model(trace, settings);
    const Usage peak = run_model(*model, trace);
    const Reproduction same = compare_segments(recorded.segments, model->segments());
    const bool is_same = same.exact() && peak.held == recorded.peak_held;
    if (oldest_first && !is_same) return;  // neither: the first stays
    result.recorded = settings;
    result.scenarios = {{"PyTorch, as recorded", peak}};
    if (recorded.is_complete) result.reproduction = same;
    if (is_same || settings.made == nullptr || settings.made->empty()) return;  // both rules are one
  }
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// The end of a long place: its file name and line say more than its folders.
std::string short_place(const std::string& place, std::size_t width) {
  if (place.size() <= width) return place;
  std::size_t from = place.size() - (width - 3);
  while (from < place.size() && (static_cast<unsigned char>(place[from]) & 0xc0) == 0x80) ++from;
  return "..." + place.substr(from);
}

// Text of a file may have any bytes; a terminal and JSON want UTF-8 without control characters.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  for (std::size_t at = 0;; ++at) {
    at += internal::first_invalid_utf8(std::string_view(text).substr(at));
    if (at == text.size()) return text;
    text[at] = '?';
  }
}

}  // namespace

PlanProblem to_problem(const RequestTrace& trace) {
  PlanProblem problem;
  problem.lifetimes.resize(trace.requests.size());
  const auto end = static_cast<std::int64_t>(trace.steps.size());
  for (std::size_t i = 0; i < trace.requests.size(); ++i)
    problem.lifetimes[i] = {.bytes = trace.requests[i].bytes, .first = 0, .last = 0};
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    const TraceStep& step = trace.steps[i];
    if (!step.is_of_a_request()) continue;
    Lifetime& lifetime = problem.lifetimes[step.request];
    if (step.kind == TraceStep::Kind::kAllocate) {
      lifetime.first = static_cast<std::int64_t>(i);
      lifetime.last = end;
    } else {
      lifetime.last = static_cast<std::int64_t>(i);
    }
  }
  return problem;
}

Result<Explanation> explain(const RequestTrace& trace, const std::string& file) {
  Explanation result{.file = file, .peak = find_peak(trace)};
  const auto add = [&](std::string name, AllocatorModel& model) {
    result.scenarios.push_back({std::move(name), run_model(model, trace)});
  };
  if (trace.recorded) explain_recorded(trace, result);
  const std::pair<const char*, TorchSettings> torch[] = {{"PyTorch", {}},
                                                         {"PyTorch, expandable segments", {.expandable = true}}};
  for (const auto& [name, settings] : torch) add(name, *make_torch_model(trace, settings));
  add("Berth's caching pool", *make_pool_model(trace));
  add("Berth's growable memory", *make_growable_model(trace));
  result.plan_bound = result.peak.bytes;
  if (trace.requests.size() <= kMostPlanned) {
    BERTH_TRY_ASSIGN(const MemoryPlan found, plan(trace.problem ? *trace.problem : to_problem(trace)));
    result.plan_bytes = found.size;
    result.plan_bound = found.lower_bound;
  }
  return result;
}

std::string to_text(const Explanation& explanation, const RequestTrace& trace, std::size_t holders) {
  const TracePeak& peak = explanation.peak;
  std::string text = fmt::format("{}: {}, {} requests", printable(explanation.file), trace.kind,
                                 with_thousands(trace.requests.size()));
  if (trace.devices > 1) text += fmt::format(", device {} of {}", trace.device, trace.devices);
  text += "\n\n";
  text += fmt::format("peak        {} in {} requests", format_bytes(peak.bytes), with_thousands(peak.live_count));
  if (!trace.steps.empty()) text += fmt::format(", at {}", trace.time_text(trace.steps[peak.step]));
  text += "\n";
  if (trace.recorded) {
    text += fmt::format("held        {} at the highest, as recorded\n", format_bytes(trace.recorded->peak_held));
    if (!trace.recorded->is_complete)
      text += "            the trace begins after the first request: what was there before counts from its beginning\n";
    if (!trace.recorded->has_settings)
      text += "            the snapshot does not say how the allocator was set up: the models have its defaults\n";
    if (trace.recorded->has_private_pools)
      text +=
          "            some segments are of private pools, such as those of CUDA graphs; the models have one pool\n";
  }
  text += "\nheld by, at the peak\n";
  Table places;
  places.row({"bytes", "part", "count", "place"});
  for (std::size_t i = 0; i < std::min(holders, peak.holders.size()); ++i) {
    const TracePeak::Holder& holder = peak.holders[i];
    places.row({format_bytes(holder.bytes), percent(holder.bytes, peak.bytes), with_thousands(holder.count),
                short_place(printable(holder.place), 72)});
  }
  text += places.str();
  if (peak.holders.size() > holders) {
    std::uint64_t rest = 0;
    for (std::size_t i = holders; i < peak.holders.size(); ++i) rest += peak.holders[i].bytes;
    text +=
        fmt::format("and {} in {} other places\n", format_bytes(rest), with_thousands(peak.holders.size() - holders));
  }
  text += "\nthe same requests would hold, and lose at that moment\n";
  Table table;
  table.row({"under", "held", "of peak", "rounding", "caching", "fragmentation"});
  const auto ratio = [&](std::uint64_t held) {
    return peak.bytes == 0 ? std::string("-")
                           : fmt::format("{:.3f}", static_cast<double>(held) / static_cast<double>(peak.bytes));
  };
  for (const Scenario& each : explanation.scenarios)
    table.row({each.name, format_bytes(each.peak.held), ratio(each.peak.held),
               format_bytes(each.peak.lost_to_rounding()), format_bytes(each.peak.lost_to_caching()),
               format_bytes(each.peak.lost_to_fragmentation())});
  if (explanation.plan_bytes)
    table.row({"a plan", format_bytes(*explanation.plan_bytes), ratio(*explanation.plan_bytes), "", "", ""});
  table.row(
      {"the bound of every plan", format_bytes(explanation.plan_bound), ratio(explanation.plan_bound), "", "", ""});
  text += table.str();
  if (explanation.reproduction) {
    const Reproduction& same = *explanation.reproduction;
    text += fmt::format("\nthe model of PyTorch ends with {} of the {} recorded segments ({} of {})\n",
                        with_thousands(same.matched_count), with_thousands(same.recorded_count),
                        format_bytes(same.modelled_bytes), format_bytes(same.recorded_bytes));
  }
  return text;
}

nlohmann::ordered_json to_json(const Explanation& explanation, const RequestTrace& trace) {
  const TracePeak& peak = explanation.peak;
  nlohmann::ordered_json json = {
      {"format", "berth-explanation"}, {"file", printable(explanation.file)}, {"kind", trace.kind},
      {"device", trace.device},        {"requests", trace.requests.size()},   {"peak_bytes", peak.bytes},
      {"peak_count", peak.live_count}};
  if (!trace.steps.empty()) json["peak_at"] = trace.time_text(trace.steps[peak.step]);
  json["holders"] = nlohmann::ordered_json::array();
  for (const TracePeak::Holder& holder : peak.holders)
    json["holders"].push_back({{"place", printable(holder.place)}, {"bytes", holder.bytes}, {"count", holder.count}});
  json["scenarios"] = nlohmann::ordered_json::array();
  for (const Scenario& each : explanation.scenarios)
    json["scenarios"].push_back({{"name", each.name},
                                 {"held_bytes", each.peak.held},
                                 {"requested_bytes", each.peak.requested},
                                 {"rounding_bytes", each.peak.lost_to_rounding()},
                                 {"caching_bytes", each.peak.lost_to_caching()},
                                 {"fragmentation_bytes", each.peak.lost_to_fragmentation()}});
  json["plan_bound_bytes"] = explanation.plan_bound;
  if (explanation.plan_bytes) json["plan_bytes"] = *explanation.plan_bytes;
  if (trace.recorded) {
    json["recorded"] = {
        {"peak_held_bytes", trace.recorded->peak_held},      {"segments", trace.recorded->segments.size()},
        {"expandable_segments", trace.recorded->expandable}, {"private_pools", trace.recorded->has_private_pools},
        {"settings", trace.recorded->has_settings},          {"complete", trace.recorded->is_complete}};
    if (explanation.reproduction) {
      const Reproduction& same = *explanation.reproduction;
      json["recorded"]["model"] = {{"segments", same.modelled_count},
                                   {"matched", same.matched_count},
                                   {"bytes", same.modelled_bytes},
                                   {"recorded_bytes", same.recorded_bytes},
                                   {"exact", same.exact()}};
    }
  }
  return json;
}

MemoryMap to_map(const RequestTrace& trace, const Explanation& explanation) {
  constexpr std::size_t kMostDrawn = 20'000;
  std::vector<bool> is_drawn(trace.requests.size(), true);
  if (trace.requests.size() > kMostDrawn) {
    std::vector<std::uint32_t> order(trace.requests.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::nth_element(order.begin(), order.begin() + kMostDrawn, order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return trace.requests[a].bytes > trace.requests[b].bytes;
    });
    for (std::size_t i = kMostDrawn; i < order.size(); ++i) is_drawn[order[i]] = false;
  }
  const PlanProblem problem = to_problem(trace);
  MemoryMap map{.title = printable(explanation.file), .subtitle = trace.kind, .time_unit = "step"};
  const auto draw = [&](const char* title, AllocatorModel& model) {
    MapPanel panel{.title = title};
    std::vector<std::uint32_t> nodes(trace.requests.size());
    std::vector<std::uint64_t> heights;
    std::uint64_t held = 0;
    for (const TraceStep& step : trace.steps) {
      run_step(model, trace, step);
      if (step.kind != TraceStep::Kind::kAllocate) continue;
      const Request& request = trace.requests[step.request];
      held = std::max(held, model.usage().held);
      const auto place = model.place_of(step.request);
      if (!place) continue;
      if (place->segment >= heights.size()) heights.resize(place->segment + 1);
      heights[place->segment] = std::max(heights[place->segment], place->offset + request.bytes);
      if (!is_drawn[step.request]) continue;
      const Lifetime& lifetime = problem.lifetimes[step.request];
      panel.rectangles.push_back({.node = static_cast<std::uint32_t>(panel.names.size()),
                                  .block = place->segment,
                                  .offset = place->offset,
                                  .bytes = request.bytes,
                                  .first = lifetime.first,
                                  .last = lifetime.last});
      panel.names.push_back(printable(trace.places[request.place]));
    }
    for (std::size_t i = 0; i < heights.size(); ++i)
      panel.blocks.push_back({.name = fmt::format("segment {}", i), .bytes = heights[i]});
    panel.held = held;
    panel.bound = find_peak(trace).bytes;
    if (trace.requests.size() > kMostDrawn)
      panel.notes.push_back(fmt::format("The {} largest of {} requests are drawn.", with_thousands(kMostDrawn),
                                        with_thousands(trace.requests.size())));
    map.panels.push_back(std::move(panel));
  };
  draw("PyTorch's allocator (model)", *make_torch_model(trace, explanation.recorded));
  draw("Berth's growable memory", *make_growable_model(trace));
  return map;
}

}  // namespace berth::cli
