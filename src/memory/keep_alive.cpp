#include "memory/keep_alive.h"

#include "berth/base/mutex.h"

namespace berth::internal {

KeepAlive::KeepAlive(Residency& set, std::chrono::milliseconds interval)
    : set_(set), interval_(interval), thread_([this] { run(); }) {}

KeepAlive::~KeepAlive() {
  end();
  thread_.join();
}

void KeepAlive::end() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
}

void KeepAlive::run() {
  const MutexLock lock(mutex_);
  while (true) {
    const auto until = std::chrono::steady_clock::now() + interval_;
    while (!ending_ && wake_.wait_until(mutex_, until)) {
    }
    if (ending_) return;
    if (!set_.was_active()) set_.renew();
  }
}

}  // namespace berth::internal
