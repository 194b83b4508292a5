#include "memory/keep_alive.h"

namespace berth {

KeepAlive::KeepAlive(Residency& set, std::chrono::milliseconds interval)
    : set_(set), interval_(interval), thread_([this] { run(); }) {}

KeepAlive::~KeepAlive() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void KeepAlive::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return ending_; }))
    if (!set_.was_active()) set_.renew();
}

}  // namespace berth
