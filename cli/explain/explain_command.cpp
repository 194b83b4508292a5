// `berth explain FILE`: where the memory of a program went, and what other allocators would make of the same requests.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "explain/explanation.h"
#include "streams.h"
#include "terminal.h"

namespace berth::cli {
namespace {

struct ExplainArguments {
  std::string path;
  std::string json;
  std::string html;
  std::optional<std::uint64_t> device;
  unsigned top = 8;
};

int refuse_explain(const std::string& text) {
  return cli::complain("explain", text, 2);
}

int run_explain(const ExplainArguments& arguments) {
  Progress progress("reading " + in_one_line(arguments.path));
  const auto trace = read_request_trace(arguments.path, device_number(arguments.device));
  if (!trace) return refuse_explain(trace.error().message());
  progress.update(std::nullopt, "running the models");
  const auto explanation = explain(*trace, arguments.path);
  if (!explanation) return refuse_explain(arguments.path + ": " + explanation.error().message());
  if (!arguments.html.empty()) {
    if (const auto done = write_memory_map(arguments.html, to_map(*trace, *explanation)); !done)
      return refuse_explain(done.error().message());
  }
  if (!arguments.json.empty()) {
    if (const auto done = write_text(arguments.json, json_text(to_json(*explanation, *trace))); !done)
      return refuse_explain(done.error().message());
  }
  if (arguments.json != "-") fmt::print("{}", shown(to_text(*explanation, *trace, arguments.top)));
  return 0;
}

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ExplainArguments>();
  Command command(app, "explain", "Say where the memory of a program went");
  command.footer(
      "FILE is a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot), a recording of Berth, or a table of\n"
      "lifetimes (id, lower, upper, size). Nothing in a snapshot is executed.\n"
      "Exit status: 0, or 2 for a file that cannot be read.");
  command.option("file", arguments->path, "The file to explain").required();
  command.option("--device", arguments->device, "The device, of a snapshot with several");
  command.option("--top", arguments->top, "How many places to list").show_default();
  command.option("--json", arguments->json, "Everything as JSON, to a file or -");
  command.option("--html", arguments->html, "The memory map, one HTML file");
  command.action([arguments, &exit_code] { exit_code = run_explain(*arguments); });
}

}  // namespace berth::cli
