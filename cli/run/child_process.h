// A child that runs this same program with other arguments and talks in lines of JSON: one line to it, one line back.
// Measurements that must not see each other (peak memory, page faults) each have a child of their own. Not
// thread-safe. Destroying it closes its input, which ends it, and waits.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::cli {

class ChildProcess {
 public:
  // Starts this program with `arguments`. Io: no process or pipe could be made.
  static Result<ChildProcess> start(const std::vector<std::string>& arguments);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Sends one line and waits for one. An {"error": "...", "code": n} answer is returned as that error; a child that
  // ended instead of answering is an Io error that says how it ended.
  Result<nlohmann::json> ask(const nlohmann::json& question);

 private:
  ChildProcess() = default;
  Result<std::string> read_line();
  std::string how_it_ended();

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string buffered_;
};

}  // namespace berth::cli
