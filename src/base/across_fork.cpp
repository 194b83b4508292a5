#include "base/across_fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "base/os/process_barrier.h"
#include "berth/base/mutex.h"

namespace berth::internal {
namespace {

constexpr std::size_t kTurns = 2;

// Never destroyed: a process may fork while it exits.
struct Members {
  Mutex mutex;  // held from before a fork until after it
  std::array<std::vector<AcrossFork*>, kTurns> by_turn BERTH_GUARDED_BY(mutex);
};

Members& members() {
  static Members* const instance = new Members;
  return *instance;
}

// The lock spans two functions, which the analysis cannot follow.
void before() BERTH_NO_THREAD_ANALYSIS {
  Members& all = members();
  all.mutex.lock();
  for (const auto& turn : all.by_turn)
    for (AcrossFork* each : turn) each->before_fork();
}

void after(bool in_child) BERTH_NO_THREAD_ANALYSIS {
  Members& all = members();
  // The registration of a process for its barrier may not survive the fork.
  if (in_child && kHasProcessBarrier) static_cast<void>(prepare_process_barrier());
  for (std::size_t turn = kTurns; turn-- > 0;)
    for (std::size_t i = all.by_turn[turn].size(); i-- > 0;) all.by_turn[turn][i]->after_fork(in_child);
  all.mutex.unlock();
}

}  // namespace

void join_forks(AcrossFork& object, AcrossFork::Turn turn) {
  Members& all = members();
  static const int registered = pthread_atfork(
      before, [] { after(false); }, [] { after(true); });
  if (registered != 0) throw std::bad_alloc();
  static_cast<void>(is_forked_child());  // remembers this process
  const MutexLock lock(all.mutex);
  all.by_turn[static_cast<std::size_t>(turn)].push_back(&object);
}

void leave_forks(AcrossFork& object) noexcept {
  Members& all = members();
  const MutexLock lock(all.mutex);
  for (auto& turn : all.by_turn) {
    const auto found = std::find(turn.begin(), turn.end(), &object);
    if (found == turn.end()) continue;
    *found = turn.back();
    turn.pop_back();
  }
}

bool is_forked_child() noexcept {
  static const pid_t first = getpid();
  return getpid() != first;
}

}  // namespace berth::internal
