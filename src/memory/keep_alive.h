// A thread that renews a residency set whenever nothing was submitted for an interval. It sleeps in between, and its
// end, which the destructor waits for, cuts the sleep short. Belongs to a device and ends before it.
#pragma once

#include <chrono>
#include <thread>

#include "berth/base/mutex.h"
#include "berth/memory/residency.h"

namespace berth {

class KeepAlive {
 public:
  KeepAlive(Residency& set, std::chrono::milliseconds interval);
  ~KeepAlive();
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;

 private:
  void run();

  Residency& set_;
  const std::chrono::milliseconds interval_;
  Mutex mutex_;
  CondVar wake_;
  bool ending_ BERTH_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last, so that it starts when the rest is there
};

}  // namespace berth
