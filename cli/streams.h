// The program's standard streams: kept in place where they are closed, checked at the end, and safe for a terminal.
// Called by the main thread.
#pragma once

#include <string>
#include <string_view>

#include "berth/base/result.h"

namespace berth::cli {

// Opens what is closed of standard input, output and error, so that no file of the program gets their numbers. What is
// written there still fails. Call this first.
void hold_standard_streams();

// Text from a file, a model or the system for a terminal: control characters and malformed bytes are escaped. Ends of
// lines stay.
std::string shown(std::string_view text);

// The same for a name: ends of lines are escaped too.
std::string in_one_line(std::string_view name);

// Prints "berth COMMAND: text" to standard error and returns the exit code.
int complain(std::string_view command, std::string_view text, int exit_code);

// JSON for files and terminals: ASCII alone, whatever the strings have.
template <class Json>
std::string json_text(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', true, Json::error_handler_t::replace) + "\n";
}

// Writes `text` to standard output if `path` is "-", else to a file that appears complete or not at all. kIo.
Result<void> write_text(const std::string& path, std::string_view text);

// Says that standard output could not be written, with the errno if it is not 0, and returns the exit code: 1, or 141
// without a message if the reader of a pipe has gone, as a shell reports it.
int output_lost(int reason);

// Flushes standard output. `exit_code` if everything that was printed got out, else output_lost().
int finish_output(int exit_code);

}  // namespace berth::cli
