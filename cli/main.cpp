#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app{"Berth: the memory layer for tensor runtimes"};
  app.set_version_flag("--version", "berth " BERTH_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
