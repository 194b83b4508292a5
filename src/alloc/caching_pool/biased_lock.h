// A lock that its owner acquires without an atomic read-modify-write, and that other threads revoke rarely and at a
// high cost. The owner sets "busy" and then checks that the lock is open; a thread that revokes the lock closes it and
// then checks "busy". Each side must store before it loads. The owner uses plain instructions for this, because the
// other side makes every thread of the process execute a memory barrier in between (membarrier). On systems without
// membarrier, the owner uses a sequentially consistent store.
//
// A lock is open to one key or to none. An owner that passes another key does not acquire it, so it need not check
// first which lock it has.
//
// There is one owner thread. Threads that revoke the lock must exclude each other by a lock of their own.
#pragma once

#include <atomic>
#include <thread>

#include "base/os/process_barrier.h"

namespace berth::internal {

class BiasedLock {
 public:
  constexpr BiasedLock() = default;  // closed

  // False if the system should have membarrier but does not; no lock may be used then. May also be false during static
  // initialisation.
  static bool is_usable() noexcept { return is_usable_; }

  // For the owner. False if the lock is not open to the key: take the slow path.
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

  // For other threads, in this order: close() on one or more locks, one barrier(), await_owner() on each, and finally
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

}  // namespace berth::internal
