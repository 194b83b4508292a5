#include "streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/atomic_file.h"
#include "base/utf8.h"

namespace berth::cli {
namespace {

constexpr int kReaderGone = 141;

}  // namespace

void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The direction that is of no use, so that a read or write fails. open() returns the lowest free number: this one.
    const int opened = open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != stream) close(opened);
  }
}

std::string shown(std::string_view text) {
  return internal::printable(text, true);
}

std::string in_one_line(std::string_view name) {
  return internal::printable(name);
}

int complain(std::string_view command, std::string_view text, int exit_code) {
  // Not fmt::print, which throws if standard error is full.
  const std::string line = fmt::format("berth{}{}: {}\n", command.empty() ? "" : " ", command, shown(text));
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  return exit_code;
}

Result<void> write_text(const std::string& path, std::string_view text) {
  if (path != "-") return internal::write_whole_file(path, text);
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
  return Error::with_text(Code::kIo, Layer::kProgram,
                          fmt::format("standard output could not be written: {}", std::strerror(errno)));
}

int output_lost(int reason) {
  if (reason == EPIPE) return kReaderGone;
  // The streams of C++ do not keep the reason.
  return complain(
      "", "standard output could not be written" + (reason == 0 ? "" : fmt::format(": {}", std::strerror(reason))), 1);
}

int finish_output(int exit_code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  if (exit_code != 0) return exit_code;  // said already
  return output_lost(reason);
}

}  // namespace berth::cli
