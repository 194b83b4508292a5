#include "devices/cuda/cuda_context.h"

#include <atomic>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "devices/cuda/cuda_capture.h"
#include "devices/cuda/cuda_device.h"

namespace berth::internal::cuda {
namespace {

// Incremented when a context is destroyed.
std::atomic<std::uint64_t> ended{0};

// What is known about the current context of this thread.
struct Thread {
  Context scoped = nullptr;  // set by the innermost scope
  Context seen = nullptr;    // the current context when the driver was last asked, if it belongs to a device
  bool left = false;         // set by us when the thread had none
  bool shared = false;       // other code changes it: what we remember is not reliable
  std::uint64_t ended = 0;
};
thread_local Thread thread;

}  // namespace

ContextScope::ContextScope(const CudaDevice& device, int tries) noexcept : device_(device), outer_(thread.scoped) {
  if (outer_ != device.context()) enter(tries);
}

ContextScope::ContextScope(const CudaDevice& device, Trust trust) noexcept : device_(device), outer_(thread.scoped) {
  if (outer_ == device.context()) return;
  from_memory_ = trust == Trust::kMemory && outer_ == nullptr && thread.seen == device.context() && !thread.shared &&
                 thread.ended == ended.load(std::memory_order_acquire);
  if (!from_memory_) enter(1);
}

ContextScope::~ContextScope() {
  if (!entered_) return;
  thread.scoped = outer_;
  // An enclosing scope relies on its own context being current again, so a failure is retried once.
  const Driver& driver = device_.driver();
  if (pushed_ && driver.cuCtxPopCurrent(nullptr) != kSuccess) static_cast<void>(driver.cuCtxPopCurrent(nullptr));
}

void ContextScope::enter(int tries) noexcept {
  do status_ = make_current();
  while (status_ != kSuccess && --tries > 0);
  entered_ = status_ == kSuccess;
  if (entered_) thread.scoped = device_.context();
}

Status ContextScope::make_current() noexcept {
  const Driver& driver = device_.driver();
  const Context ours = device_.context();
  if (outer_ == nullptr) {
    Context current = nullptr;
    failed_call_ = "cuCtxGetCurrent";
    if (const Status status = driver.cuCtxGetCurrent(&current); status != kSuccess) return status;
    const std::uint64_t now = ended.load(std::memory_order_acquire);
    if (thread.ended != now) {
      thread.ended = now;
      thread.shared = false;
    }
    if (current == ours) {
      thread.left = thread.left && thread.seen == ours;
      thread.seen = ours;
      return kSuccess;
    }
    if (device_.ordinal() == 0 && (current == nullptr || (thread.left && current == thread.seen))) {
      failed_call_ = "cuCtxSetCurrent";
      const Status status = driver.cuCtxSetCurrent(ours);
      thread.left = status == kSuccess;
      thread.seen = thread.left ? ours : nullptr;
      return status;
    }
  }
  failed_call_ = "cuCtxPushCurrent";
  const Status status = driver.cuCtxPushCurrent(ours);
  pushed_ = status == kSuccess;
  return status;
}

bool ContextScope::look_again() noexcept {
  thread.shared = true;
  from_memory_ = false;
  enter(1);
  return entered_;
}

void ContextScope::forget(const CudaDevice& device) noexcept {
  ended.fetch_add(1, std::memory_order_release);
  if (!thread.left || thread.seen != device.context()) return;
  Context current = nullptr;
  if (device.driver().cuCtxGetCurrent(&current) == kSuccess && current == thread.seen &&
      device.driver().cuCtxSetCurrent(nullptr) == kSuccess)
    thread.left = false;
}

Result<void> ContextScope::check(Layer layer) const {
  if (status_ == kSuccess) return {};
  return device_.driver().error(status_, failed_call_, layer);
}

Result<EventPtr> EventPool::take() {
  Event event = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    } else {
      idle_.reserve(made_ + 1);  // so that give() never allocates
      const ContextScope scope(device_);
      BERTH_TRY(scope.check());
      const Driver& driver = device_.driver();
      if (const Status status = driver.cuEventCreate(&event, kEventDisableTiming); status != kSuccess)
        return driver.error(status, "cuEventCreate");
      ++made_;
    }
  }
  return EventPtr(event, [this](Event last) { give(last); });
}

void EventPool::give(Event event) noexcept {
  const MutexLock lock(mutex_);
  idle_.push_back(event);
}

void EventPool::clear() noexcept {
  const MutexLock lock(mutex_);
  for (Event event : idle_) static_cast<void>(device_.driver().cuEventDestroy(event));
  made_ -= idle_.size();
  idle_.clear();
}

Result<std::byte*> PinnedPool::take() {
  const MutexLock lock(mutex_);
  if (!idle_.empty()) {
    std::byte* piece = idle_.back();
    idle_.pop_back();
    return piece;
  }
  BERTH_TRY(check_no_capture("a transfer that needs more pinned memory"));
  idle_.reserve(made_ + 1);  // so that give() never allocates
  const ContextScope scope(device_);
  BERTH_TRY(scope.check());
  const Driver& driver = device_.driver();
  void* memory = nullptr;
  if (const Status status = driver.cuMemHostAlloc(&memory, kPieceBytes, kHostAllocPortable); status != kSuccess)
    return driver.error(status, "cuMemHostAlloc");
  ++made_;
  return static_cast<std::byte*>(memory);
}

void PinnedPool::give(std::byte* piece) noexcept {
  const MutexLock lock(mutex_);
  idle_.push_back(piece);
}

Status PinnedPool::clear() noexcept {
  const MutexLock lock(mutex_);
  Status first = kSuccess;
  for (std::byte* piece : idle_) {
    const Status status = device_.driver().cuMemFreeHost(piece);
    if (first == kSuccess) first = status;
  }
  made_ -= idle_.size();
  idle_.clear();
  return first;
}

}  // namespace berth::internal::cuda
