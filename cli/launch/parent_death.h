// Lets a process end with the one that started it, where the system can do that. Called by the child between fork() and
// exec().
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace berth::cli {

inline void end_with_parent([[maybe_unused]] pid_t parent) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it has ended already
#endif
}

}  // namespace berth::cli
