// Locks across fork(). The child of fork() has one thread, and a lock that another thread held stays locked in it
// forever. An object that joins is told before the fork, when it acquires its locks and finishes what it has begun, and
// after it, in both processes, when it releases them. This makes pools, host memory, names and buffers usable in a
// child that does not call exec. Queues, drivers, residency sets and workers are not. Any thread may call.
#pragma once

#include <cstdint>

namespace berth::internal {

class AcrossFork {
 public:
  // The order in which locks are acquired, as in docs/design.md.
  enum class Turn : std::uint8_t { kPool, kLeaf };

  // Acquires the locks. Requires: it calls no object of an earlier turn.
  virtual void before_fork() noexcept = 0;
  // Releases them. In the child, the calling thread is the only one.
  virtual void after_fork(bool in_child) noexcept = 0;

 protected:
  ~AcrossFork() = default;
};

// From now on `object` is told of every fork, until leave_forks(). join_forks() throws std::bad_alloc.
// Requires: the caller holds none of the locks that before_fork() of any object acquires.
void join_forks(AcrossFork& object, AcrossFork::Turn turn);
void leave_forks(AcrossFork& object) noexcept;

// True in a process that was made by fork() after this function was called first: threads of libraries are missing.
bool is_forked_child() noexcept;

}  // namespace berth::internal
