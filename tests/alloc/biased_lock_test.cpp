// The lock of a thread cache alone. A program that is too early or too late by a few nanoseconds must be caught, so the
// litmus test repeats the one situation in which the barrier matters: the owner has stored "busy" and not yet published
// it, while another thread closes the lock.
#include "alloc/caching_pool/biased_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace berth::internal {
namespace {

// A short time that the compiler does not remove.
void linger(int rounds) {
  for (int i = 0; i < rounds; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
}

TEST(BiasedLock, OpensToOneKeyAndToNoOther) {
  const int key = 0, other = 0;
  BiasedLock lock;
  EXPECT_FALSE(lock.enter(&key)) << "a new lock is closed";
  lock.open(&key);
  EXPECT_FALSE(lock.enter(&other));
  EXPECT_TRUE(lock.enter(&key));
  lock.leave();
  lock.close();
  BiasedLock::barrier();
  lock.await_owner();  // returns: the owner has left, also where it was refused
  EXPECT_FALSE(lock.enter(&key));
}

TEST(BiasedLock, MakesTheOtherThreadWaitForTheOwner) {
  if (!BiasedLock::is_usable()) GTEST_SKIP() << "this system refuses membarrier; the pool does without thread caches";
  const int key = 0;
  BiasedLock lock;
  lock.open(&key);
  std::atomic<bool> is_inside{false}, has_closed{false}, owner_left{false};
  std::thread owner([&] {
    ASSERT_TRUE(lock.enter(&key));
    is_inside = true;
    while (!has_closed) std::this_thread::yield();
    linger(100'000);
    owner_left = true;
    lock.leave();
  });
  while (!is_inside) std::this_thread::yield();
  lock.close();
  has_closed = true;
  BiasedLock::barrier();
  lock.await_owner();
  EXPECT_TRUE(owner_left) << "the owner was still inside";
  owner.join();
}

TEST(BiasedLock, KeepsTheOwnerAndAnotherThreadApart) {
  if (!BiasedLock::is_usable()) GTEST_SKIP() << "this system refuses membarrier; the pool does without thread caches";
  const int key = 0;
  alignas(64) BiasedLock lock;
  alignas(64) std::atomic<int> inside{0};
  alignas(64) std::atomic<bool> over{false};
  alignas(64) std::atomic<std::uint64_t> entered{0};
  alignas(64) std::atomic<std::uint64_t> both{0};
  lock.open(&key);
  std::thread owner([&] {
    std::uint64_t times = 0;
    while (!over.load(std::memory_order_relaxed)) {
      if (!lock.enter(&key)) continue;
      if (inside.exchange(1, std::memory_order_relaxed) != 0) both.fetch_add(1, std::memory_order_relaxed);
      linger(20);
      inside.store(0, std::memory_order_relaxed);
      lock.leave();
      entered.store(++times, std::memory_order_relaxed);
    }
  });
  std::uint64_t before = 0;
  // Without the barrier, about one round in a thousand fails. On a machine that is busy with other things a round takes
  // long, so their number is limited by the time as well.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  for (int i = 0; i < 20'000 && (i < 100 || std::chrono::steady_clock::now() < end); ++i) {
    // The owner is in the middle of its loop, on another processor if there is one. The moment of closing falls
    // everywhere in the loop.
    for (int spins = 0; entered.load(std::memory_order_relaxed) <= before; ++spins)
      if (spins > 1000) std::this_thread::yield();
    linger(i % 64);
    lock.close();
    BiasedLock::barrier();
    lock.await_owner();
    if (inside.exchange(2, std::memory_order_relaxed) != 0) both.fetch_add(1, std::memory_order_relaxed);
    linger(20);
    inside.store(0, std::memory_order_relaxed);
    before = entered.load(std::memory_order_relaxed);
    lock.open(&key);
  }
  over = true;
  owner.join();
  EXPECT_EQ(both.load(), 0u) << "times that both were inside";
}

}  // namespace
}  // namespace berth::internal
