// A lock that its owner takes without an atomic read-modify-write, and that others take away rarely and dearly.
// The owner says "busy" and then looks whether the lock is open to it; whoever takes it away closes it and then looks
// for "busy". Each side must write before it reads. The owner does that with plain instructions, because the other
// side makes every thread of the process pass a memory barrier in between (membarrier). On systems that do not know
// membarrier, the owner pays for the order.
//
// A lock is open to one key, or to nobody: an owner that comes with another key does not get in, which spares it to
// look first whose lock it has.
//
// One owner thread; those who take it away are kept apart by a lock of their own.
#pragma once

#include <atomic>
#include <thread>

#include "base/os/process_barrier.h"

namespace berth {

class BiasedLock {
 public:
  constexpr BiasedLock() = default;  // open to nobody

  // False where the system should have membarrier and does not: then no lock may be used. Also during static
  // initialisation, perhaps.
  static bool is_usable() noexcept { return is_usable_; }

  // Owner. False when the lock is not open to the key: then go the slow way.
  bool enter(const void* key) noexcept {
    if constexpr (kHasProcessBarrier) {
      busy_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy_.store(true, std::memory_order_seq_cst);
    }
    if (open_to_.load(std::memory_order_seq_cst) == key) [[likely]]
      return true;
    leave();
    return false;
  }
  void leave() noexcept { busy_.store(false, std::memory_order_release); }

  // Others, in this order: close() on one or several locks, one barrier(), await_owner() on each, and at the end
  // open().
  void close() noexcept { open_to_.store(nullptr, std::memory_order_seq_cst); }
  static void barrier() noexcept {
    if (is_usable_) process_barrier();
  }
  void await_owner() const noexcept {
    while (busy_.load(std::memory_order_seq_cst)) std::this_thread::yield();
  }
  void open(const void* key) noexcept { open_to_.store(key, std::memory_order_release); }

 private:
  inline static const bool is_usable_ = prepare_process_barrier();

  std::atomic<const void*> open_to_{nullptr};
  std::atomic<bool> busy_{false};
};

}  // namespace berth
