// `berth launch -n 4 -- program`: several processes on this machine that can find each other.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "berth/base/result.h"
#include "command_line.h"
#include "commands.h"
#include "launch/job.h"
#include "run/private_folder.h"
#include "streams.h"

namespace berth::cli {
namespace {

constexpr unsigned kMostRanks = 1024;
// As shells and env(1) report a program that is not there, or cannot be run.
constexpr int kNotThere = 127, kCannotRun = 126;

std::string random_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

int launch(JobOptions& options) {
  if (options.program.empty())
    return complain("launch", "no program: write it after --, as in berth launch -n 4 -- ./program --its-option", 2);
  const char* named = std::getenv("TMPDIR");
  const auto folder = PrivateFolder::make(named != nullptr && *named != '\0' ? named : "/tmp", "berth-launch-");
  if (!folder) return complain("launch", folder.error().message(), 1);
  options.environment = {{"BERTH_RANKS", std::to_string(options.ranks)},
                         {"BERTH_EXCHANGE", folder->path()},
                         {"BERTH_JOB_TOKEN", random_token()}};
  const Result<int> ended = run_job(options);
  if (ended) return *ended;
  return complain("launch", ended.error().message(), ended.error().code() == Code::kNotFound ? kNotThere : kCannotRun);
}

}  // namespace

void add_launch_command(CLI::App& app, const std::vector<std::string>& program, int& exit_code) {
  Command command(app, "launch", "Start several processes of a program that can find each other: ranks of one job");
  auto options = std::make_shared<JobOptions>();
  options->program = program;
  command.option("-n,--ranks", options->ranks, "The number of processes").required().between(1, kMostRanks);
  command.flag("--label", options->label, "Begin each line of output with the rank that wrote it");
  command.flag("--keep-going", options->keep_going, "Let the other ranks go on when one fails");
  command.option("--grace", options->grace_seconds, "Seconds between asking a rank to end and killing it")
      .show_default()
      .not_negative();
  command.footer(
      "The program and its arguments follow after --.\n"
      "Example: berth launch -n 4 --label -- ./my_program model.safetensors\n"
      "Each rank finds BERTH_RANK, BERTH_RANKS, BERTH_EXCHANGE and BERTH_JOB_TOKEN in its environment, which\n"
      "berth::make_job_exchange() reads. When a rank fails, the others are ended. The exit code is that of the first\n"
      "rank that failed, 128 and the number of the signal that ended it, or 0.");
  command.action([options, &exit_code] { exit_code = launch(*options); });
}

}  // namespace berth::cli
