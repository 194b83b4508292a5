// A pool in the child of a fork, while threads of the parent are in the middle of using it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/sanitizers.h"
#include "berth/alloc/caching_pool.h"
#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"

// The thread sanitizer ends every child of a process with threads. The address sanitizer's own allocator has locks that
// stay locked in a child if another thread was allocating.
#if !BERTH_THREAD_SANITIZER && !BERTH_ADDRESS_SANITIZER

namespace berth {
namespace {

// What a child does: hits, misses, names, buffers, large copies, and everything that stops other threads.
int use(const std::shared_ptr<CachingPool>& pool, int number) {
  for (int i = 0; i < 50; ++i) {
    const auto small = pool->allocate({.bytes = 256});
    const auto fresh = pool->allocate({.bytes = static_cast<std::size_t>(5000 + 900 * i), .zero = true});
    if (!small || !fresh) return 1;
    pool->release(*small);
    pool->release(*fresh);
  }
  const auto buffer =
      Buffer::allocate(pool, u8, {std::size_t{8} << 20}, {.label = Name("child " + std::to_string(number))});
  if (!buffer) return 2;
  const std::vector<std::byte> bytes(buffer->size(), std::byte{7});
  if (!buffer->copyin(bytes)) return 3;
  if (!pool->check()) return 4;
  pool->trim();
  return pool->counters().cached_bytes == 0 ? 0 : 5;
}

TEST(PoolFork, WorksInAChildThatIsForkedWhileThreadsUseThePool) {
  const auto pool = make_caching_pool(device("CPU").value());
  std::atomic<bool> over{false};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; !over.load(); ++i) {
        const auto block = pool->allocate({.bytes = 64 + i % 50 * 300});
        if (t == 0 && i % 64 == 0) pool->trim(i % 4096);
        if (t == 1 && i % 64 == 0) static_cast<void>(pool->check());
        if (t == 2 && i % 64 == 0) static_cast<void>(Name("thread " + std::to_string(i % 500)));
        if (block) pool->release(*block);
      }
    });
  for (int i = 0; i < 40; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);  // a child that hangs is killed; a child that works does not notice
      _exit(use(pool, i));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "child " << i << " hung, or ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 0, 0) << "child " << i;
    if (HasFailure()) break;
  }
  over = true;
  threads.clear();
  EXPECT_TRUE(pool->check().has_value()) << "the parent goes on";
}

}  // namespace
}  // namespace berth

#endif
