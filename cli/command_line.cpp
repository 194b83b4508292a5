#include "command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace berth::cli {

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option Option::between(std::uint64_t least, std::uint64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option Option::not_negative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

Option Option::one_of(std::vector<std::string> choices) {
  option_->check(CLI::IsMember(std::move(choices)));
  return *this;
}

Option Option::value_is_optional() {
  option_->expected(0, 1);
  return *this;
}

bool Option::given() const {
  return option_->count() > 0;
}

Command::Command(CLI::App& app, const std::string& name, const std::string& help)
    : command_(app.add_subcommand(name, help)) {}

template <class T>
Option Command::option(const std::string& name, T& value, const std::string& help) {
  return Option(command_->add_option(name, value, help));
}

void Command::flag(const std::string& name, bool& value, const std::string& help) {
  command_->add_flag(name, value, help);
}

void Command::footer(const std::string& text) {
  command_->footer(text);
}

void Command::hide() {
  command_->group("");
}

void Command::action(std::function<void()> function) {
  command_->callback(std::move(function));
}

template Option Command::option(const std::string&, std::string&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::option(const std::string&, int&, const std::string&);
template Option Command::option(const std::string&, unsigned&, const std::string&);
template Option Command::option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::option(const std::string&, double&, const std::string&);
template Option Command::option(const std::string&, std::optional<std::uint64_t>&, const std::string&);
template Option Command::option(const std::string&, std::optional<double>&, const std::string&);

}  // namespace berth::cli
