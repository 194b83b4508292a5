// The processes of one job on this machine: started together, watched, and ended together. For use by the main thread,
// which must be the only thread while processes are started.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "berth/base/result.h"

namespace berth::cli {

struct JobOptions {
  unsigned ranks = 1;
  std::vector<std::string> program{};  // its name or path, and its arguments
  // What each rank finds in its environment, besides BERTH_RANK.
  std::vector<std::pair<std::string, std::string>> environment{};
  // Lines of output begin with "[rank] ".
  bool label = false;
  // Ranks go on when one of them fails.
  bool keep_going = false;
  // How long a rank that is asked to end (SIGTERM) may take before it is killed.
  double grace_seconds = 5;
};

// Runs the job to its end. Signals that ask this process to end go on to all ranks; so do SIGUSR1 and SIGUSR2. Rank 0
// reads the standard input unless that is a terminal. Each failure is reported on standard error: which rank ended how.
// Returns the exit code: 0; that of the first rank that failed, or 128 and the signal that ended it; 128 and the signal
// that ended the job. kNotFound or kIo, with nothing left running, if the program or a process cannot be started.
Result<int> run_job(const JobOptions& options);

}  // namespace berth::cli
