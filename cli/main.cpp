// The program berth: one file per subcommand.
#include <CLI/CLI.hpp>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app{"Berth: the memory layer for tensor runtimes"};
  app.set_version_flag("--version", "berth " BERTH_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  berth::cli::add_devices_command(app, exit_code);
  berth::cli::add_replay_command(app, exit_code);
  berth::cli::add_plan_command(app, exit_code);
  berth::cli::add_inspect_command(app, exit_code);
  berth::cli::add_convert_command(app, exit_code);
  berth::cli::add_tflite_command(app, exit_code);
  berth::cli::add_run_command(app, exit_code);
  berth::cli::add_explain_command(app, exit_code);
  berth::cli::add_diff_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;  // 2: bad input, for every subcommand
  }
  return exit_code;
}
