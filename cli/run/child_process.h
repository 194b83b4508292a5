// A child process that runs this program with other arguments and communicates in messages (message.h): one line to it,
// one line back. Measurements that must not affect each other (peak memory, page faults) use separate children. Not
// thread-safe. The destructor closes the input of the child, which ends it, and waits.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::cli {

class ChildProcess {
 public:
  // Starts this program with `arguments`. The child ignores Ctrl-C, which a terminal sends to it too: a request of
  // `stop` ends it. kIo if the process or a pipe cannot be created.
  static Result<ChildProcess> start(const std::vector<std::string>& arguments, std::stop_token stop);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Sends one line and waits for one. An {"error": "...", "code": n} answer is returned as that error; a child that
  // ended without an answer is a kIo error that says how it ended. kCancelled after a stop request; the child is then
  // ended.
  Result<nlohmann::json> ask(const nlohmann::json& question);

 private:
  ChildProcess() = default;
  Result<std::string> read_line();
  std::string how_it_ended();
  Error cancelled();

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string buffered_;
  std::stop_token stop_;
};

}  // namespace berth::cli
