// Mutexes that clang's thread-safety analysis understands. A member that a mutex guards is declared with
// BERTH_GUARDED_BY(mutex_), a function that needs the lock with BERTH_REQUIRES(mutex_); clang builds then refuse to
// compile an access without the lock. Other compilers see std::mutex and no attributes. The costs are those of the
// standard types.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define BERTH_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define BERTH_THREAD_ATTRIBUTE(...)
#endif

// Of a member: it may be used only while this mutex is held. The second form is for what a pointer leads to.
#define BERTH_GUARDED_BY(...) BERTH_THREAD_ATTRIBUTE(guarded_by(__VA_ARGS__))
#define BERTH_PT_GUARDED_BY(...) BERTH_THREAD_ATTRIBUTE(pt_guarded_by(__VA_ARGS__))
// Of a function: its caller holds the mutex; it acquires or releases the mutex; its caller must not hold the mutex.
#define BERTH_REQUIRES(...) BERTH_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define BERTH_REQUIRES_SHARED(...) BERTH_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define BERTH_ACQUIRE(...) BERTH_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define BERTH_RELEASE(...) BERTH_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define BERTH_EXCLUDES(...) BERTH_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Of a function whose locking the analysis cannot follow. Each use says why.
#define BERTH_NO_THREAD_ANALYSIS BERTH_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace berth {

class BERTH_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() BERTH_ACQUIRE() { mutex_.lock(); }
  void unlock() noexcept BERTH_RELEASE() { mutex_.unlock(); }
  bool try_lock() BERTH_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }
  // For code that runs under the lock where the analysis cannot see it, such as a lambda. Does nothing.
  void assert_held() const BERTH_THREAD_ATTRIBUTE(assert_capability(this)) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex from its construction to the end of its scope. Works for every type with lock() and unlock().
template <class AnyMutex>
class BERTH_THREAD_ATTRIBUTE(scoped_lockable) ScopedLock {
 public:
  explicit ScopedLock(AnyMutex& mutex) BERTH_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ScopedLock() BERTH_RELEASE() { mutex_.unlock(); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  AnyMutex& mutex_;
};
using MutexLock = ScopedLock<Mutex>;

// A condition variable for Mutex. Waits may end without a reason: call them in a loop that tests the condition.
class CondVar {
 public:
  void wait(Mutex& mutex) BERTH_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False if the time came first.
  template <class Clock, class Duration>
  bool wait_until(Mutex& mutex, std::chrono::time_point<Clock, Duration> until) BERTH_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool woken = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// A mutex that many readers can hold at once.
class BERTH_THREAD_ATTRIBUTE(capability("shared_mutex")) SharedMutex {
 public:
  void lock() BERTH_ACQUIRE() { mutex_.lock(); }
  void unlock() noexcept BERTH_RELEASE() { mutex_.unlock(); }
  void lock_shared() BERTH_THREAD_ATTRIBUTE(acquire_shared_capability()) { mutex_.lock_shared(); }
  void unlock_shared() noexcept BERTH_THREAD_ATTRIBUTE(release_shared_capability()) { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class BERTH_THREAD_ATTRIBUTE(scoped_lockable) SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) BERTH_THREAD_ATTRIBUTE(acquire_shared_capability(mutex)) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~SharedLock() BERTH_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace berth
