// A thread that renews a residency set whenever nothing was submitted for an interval. The destructor wakes the thread
// and waits for its end. Owned by a residency set.
#pragma once

#include <chrono>
#include <thread>

#include "berth/base/mutex.h"
#include "berth/memory/residency.h"

namespace berth::internal {

class KeepAlive {
 public:
  KeepAlive(Residency& set, std::chrono::milliseconds interval);
  ~KeepAlive();
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;

 private:
  void run();
  void end();  // not in the destructor: the thread-safety analysis leaves destructors out

  Residency& set_;
  const std::chrono::milliseconds interval_;
  Mutex mutex_;
  CondVar wake_;
  bool ending_ BERTH_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last member: the thread starts when the others exist
};

}  // namespace berth::internal
