// The program berth: one file per subcommand.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "commands.h"
#include "streams.h"

namespace {

// A layer of Mesa complains on standard error about the missing run-time folder of a desktop session. Without a session
// there is no choice of a screen's device to be made, which is all that the layer does.
void keep_mesa_quiet() {
  if (std::getenv("XDG_RUNTIME_DIR") == nullptr) setenv("NODEVICE_SELECT", "1", 0);
}

// Where memory runs out while an exception is on its way (nlohmann's JSON needs some to be destroyed) or in a thread,
// the standard library gives up. The program then ends as it does elsewhere without memory; other causes are mistakes.
[[noreturn]] void end_without_memory() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    constexpr char kText[] = "berth: out of memory\n";
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof kText - 1));
    _exit(1);
  } catch (...) {
  }
  std::abort();
}

// What follows after "--" of `berth launch`: the program to start, which is not for our own parser. Takes it off.
std::vector<std::string> take_program(int& argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "launch") return {};
  char** const end = argv + argc;
  char** const mark = std::find(argv + 2, end, std::string_view("--"));
  argc = static_cast<int>(mark - argv);
  return mark == end ? std::vector<std::string>() : std::vector<std::string>(mark + 1, end);
}

// What to say of a first word that is no command; empty if it is one, or an option. CLI11 says only that a command is
// missing.
std::string unknown_command(CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == argv[1]) return {};
    if (!command->get_group().empty()) known += (known.empty() ? "" : ", ") + command->get_name();
  }
  return "there is no command \"" + std::string(argv[1]) + "\"; the commands are " + known;
}

int run(int argc, char** argv) {
  const std::vector<std::string> program = take_program(argc, argv);
  CLI::App app{"Berth: the memory layer for tensor runtimes"};
  app.set_version_flag("--version", "berth " BERTH_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  berth::cli::add_devices_command(app, exit_code);
  berth::cli::add_replay_command(app, exit_code);
  berth::cli::add_plan_command(app, exit_code);
  berth::cli::add_inspect_command(app, exit_code);
  berth::cli::add_convert_command(app, exit_code);
  berth::cli::add_fit_command(app, exit_code);
  berth::cli::add_tflite_command(app, exit_code);
  berth::cli::add_run_command(app, exit_code);
  berth::cli::add_launch_command(app, program, exit_code);
  berth::cli::add_explain_command(app, exit_code);
  berth::cli::add_diff_command(app, exit_code);
  if (const std::string unknown = unknown_command(app, argc, argv); !unknown.empty())
    return berth::cli::complain("", unknown, 2);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;  // 2: bad input, for every subcommand
  }
  return exit_code;
}

// Runs the program. What is thrown comes from the standard library or fmt: no memory, no thread, no room for output.
int run_caught(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("berth: out of memory\n", stderr);  // a message that is built would need some
    return 1;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return berth::cli::output_lost(error.code().value());
    return berth::cli::complain("", error.what(), 1);
  } catch (const std::exception& error) {
    return berth::cli::complain("", error.what(), 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(end_without_memory);
  berth::cli::hold_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows past the limit of the shell is an error like a full disk
  keep_mesa_quiet();
  return berth::cli::finish_output(run_caught(argc, argv));
}
