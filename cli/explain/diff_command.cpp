// `berth diff A B`: the memory of two commits side by side, for a check in continuous integration. It compares figures
// that are the same on every machine: plans and peaks of requests, not resident memory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/input_file.h"
#include "base/try.h"
#include "command_line.h"
#include "commands.h"
#include "explain/request_trace.h"
#include "streams.h"
#include "terminal.h"

namespace berth::cli {
namespace {

constexpr int kSame = 0;
constexpr int kGrew = 1;
constexpr int kBadInput = 2;

struct DiffArguments {
  std::string before;
  std::string after;
  std::string tolerance = "0";
  std::string json;
  std::optional<std::uint64_t> device;
  unsigned top = 8;
};

struct Figure {
  std::string name{};
  std::uint64_t bytes = 0;
  bool decides = true;  // others are shown only
  bool is_optional = false;
};

struct Side {
  std::string kind{};
  std::vector<Figure> figures{};
  std::vector<TracePeak::Holder> holders{};
  std::string wrong{};                    // the key of a figure that is no number of bytes
  std::optional<std::uint32_t> device{};  // of a snapshot
};

struct Row {
  std::string name{};
  std::optional<std::uint64_t> before{}, after{};
  bool decides = false;
  bool is_optional = false;
  bool grew = false;
};

// "2%" or "64KiB".
struct Tolerance {
  double part = 0;
  std::uint64_t bytes = 0;

  bool allows(std::uint64_t before, std::uint64_t after) const {
    if (after <= before) return true;
    const auto grown = after - before;
    return grown <= bytes || static_cast<double>(grown) <= part * static_cast<double>(before);
  }
};

Result<Tolerance> parse_tolerance(const std::string& text) {
  const auto wrong = [&] {
    return Error::with_text(
        Code::kInvalidArgument, Layer::kProgram,
        fmt::format("--tolerance takes a part such as 2% or bytes such as 64KiB, not \"{}\"", text));
  };
  if (text.ends_with('%')) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end != text.c_str() + text.size() - 1 || text.size() < 2 || !(value >= 0 && value <= 1e9)) return wrong();
    return Tolerance{.part = value / 100};
  }
  const auto bytes = parse_bytes(text);
  if (!bytes) return wrong();
  return Tolerance{.bytes = *bytes};
}

// --- Documents in JSON ---

void add(Side& side, const nlohmann::json& object, const char* key, const std::string& name, bool decides,
         bool is_optional = false) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return;
  if (found->is_number_unsigned())
    side.figures.push_back({name, found->get<std::uint64_t>(), decides, is_optional});
  else if (side.wrong.empty())
    side.wrong = key;
}

Result<Side> side_of_json(const nlohmann::json& json, const std::string& path) {
  Side side;
  const std::string format =
      json.value("format", nlohmann::json()).is_string() ? json["format"].get<std::string>() : "";
  if (format == "berth-plan") {
    side.kind = "plan";
    add(side, json, "size", "plan", true);
    add(side, json, "lower_bound", "lower bound", false);
  } else if (format == "berth-explanation") {
    side.kind = "explanation";
    add(side, json, "peak_bytes", "peak of the requests", true);
    add(side, json, "plan_bytes", "plan", true, true);
    add(side, json, "plan_bound_bytes", "lower bound", false);
    if (const auto scenarios = json.find("scenarios"); scenarios != json.end() && scenarios->is_array())
      for (const nlohmann::json& each : *scenarios)
        if (each.is_object() && each.contains("name") && each["name"].is_string())
          add(side, each, "held_bytes", "held under " + each["name"].get<std::string>(), false);
  } else if (json.contains("berth") && json.contains("stock") && json.contains("plan_bytes")) {
    side.kind = "run report";
    add(side, json, "plan_bytes", "plan", true);
    add(side, json, "live_peak_bytes", "peak of the requests", true);
    add(side, json, "lower_bound_bytes", "lower bound", false);
    if (const auto models = json.find("models"); models != json.end() && models->is_array())
      for (const nlohmann::json& model : *models)
        if (model.is_object() && model.contains("name") && model["name"].is_string())
          add(side, model, "plan_bytes", "plan of " + model["name"].get<std::string>(), true, true);
    if (json["berth"].is_object()) {
      add(side, json["berth"], "held_bytes", "held with Berth", false);
      add(side, json["berth"], "process_peak_bytes", "process peak with Berth", false);
    }
    if (json["stock"].is_object()) add(side, json["stock"], "held_bytes", "held without Berth", false);
  }
  // A check that leaves out what it cannot read would pass when it should not.
  if (!side.wrong.empty())
    return Error::with_text(Code::kInvalidData, Layer::kProgram,
                            fmt::format("{}: \"{}\" is not a number of bytes", path, side.wrong));
  if (std::none_of(side.figures.begin(), side.figures.end(), [](const Figure& figure) { return figure.decides; }))
    return Error::with_text(Code::kInvalidData, Layer::kProgram,
                            path + ": this JSON is not a plan, an explanation or a run report of Berth");
  return side;
}

Result<Side> side_of_trace(const RequestTrace& trace) {
  Side side{.kind = trace.kind};
  TracePeak peak = find_peak(trace);
  side.figures.push_back({"peak of the requests", peak.bytes, true});
  if (trace.recorded) {
    side.figures.push_back({"held at the highest, as recorded", trace.recorded->peak_held, true});
    side.device = trace.device;
  }
  side.holders = std::move(peak.holders);
  return side;
}

Result<Side> read_side(const std::string& path, std::optional<std::uint32_t> device) {
  BERTH_TRY_ASSIGN(const int descriptor, internal::open_regular_file(path));
  char first = 0;
  const bool any = ::read(descriptor, &first, 1) == 1;
  ::close(descriptor);
  if (any && first == '{') {
    BERTH_TRY_ASSIGN(const std::string text, internal::read_whole_file(path));
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object())
      return Error::with_text(Code::kInvalidData, Layer::kProgram, path + ": it begins like JSON and is not");
    return side_of_json(json, path);
  }
  BERTH_TRY_ASSIGN(const RequestTrace trace, read_request_trace(path, device));
  return side_of_trace(trace);
}

// --- Comparing ---

std::vector<Row> compare(const Side& before, const Side& after, const Tolerance& tolerance) {
  std::vector<Row> rows;
  for (const Figure& figure : before.figures)
    rows.push_back(
        {.name = figure.name, .before = figure.bytes, .decides = figure.decides, .is_optional = figure.is_optional});
  for (const Figure& figure : after.figures) {
    // Figures of one name, such as models of one name, are compared in their order.
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const Row& each) { return each.name == figure.name && !each.after; });
    if (row != rows.end())
      row->after = figure.bytes;
    else
      rows.push_back(
          {.name = figure.name, .after = figure.bytes, .decides = figure.decides, .is_optional = figure.is_optional});
  }
  for (Row& row : rows) row.grew = row.decides && row.before && row.after && !tolerance.allows(*row.before, *row.after);
  return rows;
}

struct Change {
  std::string place{};
  std::uint64_t before = 0, after = 0;
};

// The places whose bytes at the peak changed, the largest growth first.
std::vector<Change> changes(const Side& before, const Side& after) {
  std::map<std::string, Change> by_place;
  for (const TracePeak::Holder& holder : before.holders) by_place[holder.place].before += holder.bytes;
  for (const TracePeak::Holder& holder : after.holders) by_place[holder.place].after += holder.bytes;
  std::vector<Change> result;
  for (auto& [place, change] : by_place)
    if (change.before != change.after) result.push_back({place, change.before, change.after});
  std::stable_sort(result.begin(), result.end(), [](const Change& a, const Change& b) {
    const auto growth = [](const Change& c) { return static_cast<double>(c.after) - static_cast<double>(c.before); };
    return growth(a) > growth(b);
  });
  return result;
}

std::string bytes_text(std::optional<std::uint64_t> bytes) {
  return bytes ? with_thousands(*bytes) : "-";
}

std::string change_text(std::optional<std::uint64_t> before, std::optional<std::uint64_t> after) {
  if (!before || !after) return "";
  if (*before == *after) return "0";
  const bool up = *after > *before;
  const std::uint64_t by = up ? *after - *before : *before - *after;
  std::string text = (up ? "+" : "-") + with_thousands(by);
  if (*before > 0)
    text +=
        fmt::format(" ({}{:.2f} %)", up ? "+" : "-", 100.0 * static_cast<double>(by) / static_cast<double>(*before));
  return text;
}

void print(const DiffArguments& arguments, const std::vector<Row>& rows, const std::vector<Change>& places, bool grew) {
  Table table;
  table.row({"bytes", "before", "after", "change", ""});
  for (const Row& row : rows)
    table.row({row.name, bytes_text(row.before), bytes_text(row.after), change_text(row.before, row.after),
               row.grew ? "grew" : ""});
  fmt::print("{}", shown(table.str()));
  if (!places.empty()) {
    Table list;
    list.row({"held at the peak by", "before", "after", "change"});
    for (std::size_t i = 0; i < std::min<std::size_t>(arguments.top, places.size()); ++i)
      list.row({places[i].place, bytes_text(places[i].before), bytes_text(places[i].after),
                change_text(places[i].before, places[i].after)});
    fmt::print("\n{}", shown(list.str()));
    if (places.size() > arguments.top) fmt::print("and {} other places\n", places.size() - arguments.top);
  }
  fmt::print("\n{}\n", grew ? "memory grew by more than the tolerance of " + arguments.tolerance
                            : "memory did not grow by more than the tolerance of " + arguments.tolerance);
}

nlohmann::ordered_json to_json(const std::vector<Row>& rows, const std::vector<Change>& places, bool grew) {
  nlohmann::ordered_json json = {
      {"format", "berth-diff"}, {"grew", grew}, {"figures", nlohmann::ordered_json::array()}};
  const auto number = [](std::optional<std::uint64_t> bytes) -> nlohmann::ordered_json {
    return bytes ? nlohmann::ordered_json(*bytes) : nlohmann::ordered_json();
  };
  for (const Row& row : rows)
    json["figures"].push_back({{"name", row.name},
                               {"before", number(row.before)},
                               {"after", number(row.after)},
                               {"decides", row.decides},
                               {"grew", row.grew}});
  json["places"] = nlohmann::ordered_json::array();
  for (const Change& each : places)
    json["places"].push_back({{"place", each.place}, {"before", each.before}, {"after", each.after}});
  return json;
}

int refuse_diff(const std::string& text) {
  return cli::complain("diff", text, kBadInput);
}

int run_diff(const DiffArguments& arguments) {
  const auto tolerance = parse_tolerance(arguments.tolerance);
  if (!tolerance) return refuse_diff(tolerance.error().message());
  const auto before = read_side(arguments.before, device_number(arguments.device));
  if (!before) return refuse_diff(before.error().message());
  // The same device of both, whichever has the most memory in the later one.
  const auto after = read_side(arguments.after, before->device);
  if (!after) return refuse_diff(after.error().message());
  if (before->kind != after->kind)
    return refuse_diff(fmt::format("{} is a {} and {} is a {}: compare two of one kind", arguments.before, before->kind,
                                   arguments.after, after->kind));
  const std::vector<Row> rows = compare(*before, *after, *tolerance);
  // A model may come or go, and a plan may take too long; the other figures must be there on both sides.
  for (const Row& row : rows)
    if (row.decides && !row.is_optional && (!row.before || !row.after))
      return refuse_diff(fmt::format("only {} has the figure \"{}\": the files cannot be compared",
                                     row.before ? arguments.before : arguments.after, row.name));
  const std::vector<Change> places = changes(*before, *after);
  const bool grew = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.grew; });
  if (!arguments.json.empty()) {
    if (const auto done = write_text(arguments.json, json_text(to_json(rows, places, grew))); !done)
      return refuse_diff(done.error().message());
  }
  if (arguments.json != "-") print(arguments, rows, places, grew);
  return grew ? kGrew : kSame;
}

}  // namespace

void add_diff_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<DiffArguments>();
  Command command(app, "diff", "Compare the memory of two commits");
  command.footer(
      "Both files are of one kind: plans (berth plan --json), reports (berth run --json), explanations (berth explain\n"
      "--json), recordings, memory snapshots of PyTorch, or tables of lifetimes.\n"
      "Exit status: 0 nothing grew by more than the tolerance, 1 something did, 2 bad input.");
  command.option("before", arguments->before, "The file of the earlier commit").required();
  command.option("after", arguments->after, "The file of the later commit").required();
  command.option("--tolerance", arguments->tolerance, "Growth that is allowed: 2%, or bytes such as 64KiB")
      .show_default();
  command.option("--device", arguments->device, "The device, of snapshots with several");
  command.option("--top", arguments->top, "How many places to list").show_default();
  command.option("--json", arguments->json, "The comparison as JSON, to a file or -");
  command.action([arguments, &exit_code] { exit_code = run_diff(*arguments); });
}

}  // namespace berth::cli
