#include "plan/placement/crew.h"

#include "berth/base/mutex.h"

namespace berth::internal::planner {

Crew::~Crew() {
  close();
}

void Crew::close() {
  {
    const MutexLock lock(mutex_);
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
    const MutexLock lock(mutex_);
    work_ = &work;
    busy_ = helpers_;
    ++round_;
  }
  wake_.notify_all();
  work(0);
  const MutexLock lock(mutex_);
  while (busy_ > 0) done_.wait(mutex_);
}

void Crew::serve(unsigned who) {
  std::uint64_t seen = 0;
  for (;;) {
    const std::function<void(unsigned)>* work = nullptr;
    {
      const MutexLock lock(mutex_);
      while (!closing_ && round_ == seen) wake_.wait(mutex_);
      if (closing_) return;
      seen = round_;
      work = work_;
    }
    (*work)(who);
    const MutexLock lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace berth::internal::planner
