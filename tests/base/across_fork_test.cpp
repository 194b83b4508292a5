#include "base/across_fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sanitizers.h"

// The thread sanitizer ends every child of a process with threads.
#if !BERTH_THREAD_SANITIZER

namespace berth::internal {
namespace {

struct Member final : AcrossFork {
  int before = 0, after = 0;
  void before_fork() noexcept override { ++before; }
  void after_fork(bool) noexcept override { ++after; }
};

void fork_and_wait() {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

TEST(AcrossFork, TellsThoseWhoAreThereAndNobodyWhoLeft) {
  Member leaves, stays, other_turn;
  join_forks(leaves, AcrossFork::Turn::kPool);
  join_forks(stays, AcrossFork::Turn::kPool);
  join_forks(other_turn, AcrossFork::Turn::kLeaf);
  leave_forks(leaves);
  fork_and_wait();
  for (const Member* member : {&stays, &other_turn}) {
    EXPECT_EQ(member->before, 1);
    EXPECT_EQ(member->after, 1);
  }
  EXPECT_EQ(leaves.before, 0);
  leave_forks(stays);
  leave_forks(other_turn);
  fork_and_wait();
  EXPECT_EQ(stays.before, 1);
  EXPECT_EQ(other_turn.before, 1);
}

}  // namespace
}  // namespace berth::internal
#endif
