#include "plan/placement/crew.h"

namespace berth::planner {

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
}

void Crew::run(const std::function<void(unsigned)>& work) {
  if (helpers_ == 0) {
    work(0);
    return;
  }
  if (threads_.empty()) {
    for (unsigned who = 1; who <= helpers_; ++who) threads_.emplace_back([this, who] { serve(who); });
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    busy_ = helpers_;
    ++round_;
  }
  wake_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void Crew::serve(unsigned who) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_) return;
    seen = round_;
    const auto* work = work_;
    lock.unlock();
    (*work)(who);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace berth::planner
