// `berth replay RECORDING --policy pool --policy system --policy limit=64MiB`: what a recorded program would have
// needed under each policy, side by side.
#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <optional>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/recording.h"
#include "berth/berth.h"
#include "command_line.h"
#include "commands.h"
#include "streams.h"

namespace berth::cli {
namespace {

// "64MiB", "1GiB", "4096".
std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value == 0) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  if (unit == "KiB")
    shift = 10;
  else if (unit == "MiB")
    shift = 20;
  else if (unit == "GiB")
    shift = 30;
  else if (!unit.empty() && unit != "B")
    return std::nullopt;
  if (value > (std::size_t{1} << 62) >> shift) return std::nullopt;
  return value << shift;
}

Result<AllocatorPtr> policy(const std::string& name) {
  auto cpu = device("CPU");
  if (!cpu) return cpu.error();
  if (name == "system") return AllocatorPtr(*cpu);
  if (name == "pool") return AllocatorPtr(make_caching_pool(*cpu));
  if (name.starts_with("limit="))
    if (const auto bytes = parse_bytes(std::string_view(name).substr(6)))
      return AllocatorPtr(make_limit(make_caching_pool(*cpu), *bytes));
  return Error::with_text(
      Code::kInvalidArgument, Layer::kProgram,
      fmt::format("\"{}\" is not a policy: use system, pool, or limit=SIZE as in limit=64MiB", name));
}

int run_replay(const std::string& path, const std::vector<std::string>& policies) {
  auto recording = read_recording(path);
  if (!recording) return complain("replay", recording.error().message(), 2);
  fmt::print("{}: {} allocations, {} events\n\n{:<20}{:>14}{:>14}{:>12}{:>14}{:>10}\n", shown(path), recording->blocks,
             recording->events.size(), "policy", "peak live", "peak held", "fragm.", "ns a call", "refused");
  for (const std::string& name : policies) {
    auto allocator = policy(name);
    if (!allocator) return complain("replay", allocator.error().message(), 2);
    const RecordingReport report = run_recording(*recording, **allocator);
    const auto calls = static_cast<double>(std::max<std::size_t>(recording->events.size(), 1));
    fmt::print("{:<20}{:>14}{:>14}{:>11.1f}%{:>14.1f}{:>10}\n", name, format_bytes(report.peak_live_bytes),
               format_bytes(report.peak_held_bytes), report.fragmentation * 100, report.seconds * 1e9 / calls,
               report.failures);
  }
  return 0;
}

}  // namespace

void add_replay_command(CLI::App& app, int& exit_code) {
  Command command(app, "replay", "Replay a recorded allocation trace under several policies");
  auto path = std::make_shared<std::string>();
  auto policies = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"system", "pool"});
  command.option("trace", *path, "A file that a trace allocator wrote").required();
  command.option("--policy", *policies, "system, pool or limit=SIZE; may be given several times");
  command.action([=, &exit_code] { exit_code = run_replay(*path, *policies); });
}

}  // namespace berth::cli
