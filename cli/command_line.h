// How a subcommand declares its command line: a small cover over CLI11, so that command_line.cpp and main.cpp are the
// only files that compile it. CLI11 is header-only and costs a file that includes it more than everything else in the
// file. Declared once by the main thread before parsing; a Command and an Option are handles and live as long as the
// CLI::App.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace berth::cli {

// One option or positional argument. Each call returns the same option, so that calls can be chained.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  // Parsing fails without it.
  Option required();
  // --help shows the value that the variable has now.
  Option show_default();
  // Parsing refuses a number outside [least, most].
  Option between(std::uint64_t least, std::uint64_t most);
  Option not_negative();
  // Parsing refuses any other text.
  Option one_of(std::vector<std::string> choices);
  // The option may be given without a value.
  Option value_is_optional();
  // Whether the command line had it, with or without a value. Requires: parsing is over.
  bool given() const;

 private:
  CLI::Option* option_;
};

class Command {
 public:
  // Adds the subcommand `name` to the program.
  Command(CLI::App& app, const std::string& name, const std::string& help);
  // Stores the value in `value` while parsing. A name with dashes is an option, one without is positional; a vector
  // takes several. T is std::string, a vector of them, int, unsigned, std::uint64_t, double, or an optional of one of
  // the last two; another type needs a line at the end of command_line.cpp. Requires: `value` lives until parsing is
  // over.
  template <class T>
  Option option(const std::string& name, T& value, const std::string& help);
  void flag(const std::string& name, bool& value, const std::string& help);
  // Text below the list of options in --help.
  void footer(const std::string& text);
  // Leaves the command out of --help.
  void hide();
  // What the command does, called after its command line was parsed.
  void action(std::function<void()> function);

 private:
  CLI::App* command_;
};

}  // namespace berth::cli
