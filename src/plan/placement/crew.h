// Threads that work on one thing at a time, together with the caller. They start when first needed and end with the
// Crew. One thread owns a Crew.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "berth/base/mutex.h"

namespace berth::internal::planner {

class Crew {
 public:
  explicit Crew(unsigned threads) : helpers_(threads > 0 ? threads - 1 : 0) {}
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  unsigned size() const noexcept { return helpers_ + 1; }

  // `work(who)` on every thread, `who` below size(). Returns when all have returned. Requires: `work` does not throw.
  void run(const std::function<void(unsigned)>& work);

 private:
  void serve(unsigned who);
  void close();  // not in the destructor: the thread-safety analysis leaves destructors out

  unsigned helpers_;
  Mutex mutex_;
  CondVar wake_, done_;
  const std::function<void(unsigned)>* work_ BERTH_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t round_ BERTH_GUARDED_BY(mutex_) = 0;
  unsigned busy_ BERTH_GUARDED_BY(mutex_) = 0;
  bool closing_ BERTH_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // last: they must end before what they use
};

}  // namespace berth::internal::planner
