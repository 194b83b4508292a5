// One function per subcommand. Each adds itself to the program and, if chosen, sets `exit_code`.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace berth::cli {

void add_convert_command(CLI::App& app, int& exit_code);
void add_devices_command(CLI::App& app, int& exit_code);
void add_diff_command(CLI::App& app, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_fit_command(CLI::App& app, int& exit_code);
// `program` is what follows after --: the program to start and its arguments.
void add_launch_command(CLI::App& app, const std::vector<std::string>& program, int& exit_code);
void add_replay_command(CLI::App& app, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
void add_inspect_command(CLI::App& app, int& exit_code);
void add_tflite_command(CLI::App& app, int& exit_code);
void add_run_command(CLI::App& app, int& exit_code);

}  // namespace berth::cli
