// A lock that its owner takes without an atomic read-modify-write, and that others take away rarely and dearly.
// The owner says "busy" and then looks whether the lock is revoked; whoever revokes says so and then looks for
// "busy". Each side must write before it reads. The owner does that with plain instructions, because the other
// side makes every thread of the process pass a memory barrier in between (membarrier). Where the system has no
// membarrier, the owner pays for the order.
//
// One owner thread; those who revoke are kept apart by a lock of their own.
#pragma once

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <thread>

namespace berth {

class BiasedLock {
 public:
  // Owner. False when somebody else has it: then go the slow way.
  bool enter() noexcept {
    if (others_order_) [[likely]] {
      busy_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy_.store(true, std::memory_order_seq_cst);
    }
    if (!revoked_.load(std::memory_order_seq_cst)) [[likely]]
      return true;
    busy_.store(false, std::memory_order_release);
    return false;
  }
  void leave() noexcept { busy_.store(false, std::memory_order_release); }

  // Others, in this order: revoke() on one or several locks, one barrier(), await_owner() on each, and at the
  // end give_back().
  void revoke() noexcept { revoked_.store(true, std::memory_order_seq_cst); }
  static void barrier() noexcept {
#if defined(__linux__)
    if (has_membarrier_) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
#endif
  }
  void await_owner() const noexcept {
    while (busy_.load(std::memory_order_seq_cst)) std::this_thread::yield();
  }
  void give_back() noexcept {
    revoked_.store(false, std::memory_order_release);
  }

 private:
  static bool register_membarrier() noexcept {
#if defined(__linux__)
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#else
    return false;
#endif
  }

  // Set during static initialisation; an owner that comes earlier sees false, which is slower and as safe.
  inline static const bool has_membarrier_ = register_membarrier();

  const bool others_order_ = has_membarrier_;  // beside what is touched with it
  std::atomic<bool> busy_{false};
  std::atomic<bool> revoked_{false};
};

}  // namespace berth
