#include "devices/cuda/cuda_context.h"

#include "core/try.h"

namespace berth::cuda {
namespace {

// The context of the innermost scope of this thread.
thread_local Context scoped = nullptr;

}  // namespace

ContextScope::ContextScope(const Driver& driver, Context context, int tries) noexcept
    : driver_(driver), outer_(scoped) {
  if (outer_ == context) return;
  do status_ = driver_.cuCtxPushCurrent(context);
  while (status_ != kSuccess && --tries > 0);
  pushed_ = status_ == kSuccess;
  if (pushed_) scoped = context;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  scoped = outer_;
  // An enclosing scope counts on its own context being current again, so a refusal is tried once more.
  if (driver_.cuCtxPopCurrent(nullptr) != kSuccess) static_cast<void>(driver_.cuCtxPopCurrent(nullptr));
}

Result<void> ContextScope::check(Layer layer) const {
  if (status_ == kSuccess) return {};
  return driver_.error(status_, "cuCtxPushCurrent", layer);
}

Result<EventPtr> EventPool::take() {
  Event event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    } else {
      idle_.reserve(made_ + 1);  // so that give() never allocates
      if (const Status status = driver_.cuEventCreate(&event, kEventDisableTiming); status != kSuccess)
        return driver_.error(status, "cuEventCreate");
      ++made_;
    }
  }
  return EventPtr(event, [this](Event last) { give(last); });
}

void EventPool::give(Event event) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

void EventPool::clear() noexcept {
  const std::lock_guard lock(mutex_);
  for (Event event : idle_) static_cast<void>(driver_.cuEventDestroy(event));
  made_ -= idle_.size();
  idle_.clear();
}

Result<std::byte*> PinnedPool::take() {
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    std::byte* piece = idle_.back();
    idle_.pop_back();
    return piece;
  }
  idle_.reserve(made_ + 1);  // so that give() never allocates
  void* memory = nullptr;
  if (const Status status = driver_.cuMemHostAlloc(&memory, kPieceBytes, kHostAllocPortable); status != kSuccess)
    return driver_.error(status, "cuMemHostAlloc");
  ++made_;
  return static_cast<std::byte*>(memory);
}

void PinnedPool::give(std::byte* piece) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.push_back(piece);
}

Status PinnedPool::clear() noexcept {
  const std::lock_guard lock(mutex_);
  Status first = kSuccess;
  for (std::byte* piece : idle_) {
    const Status status = driver_.cuMemFreeHost(piece);
    if (first == kSuccess) first = status;
  }
  made_ -= idle_.size();
  idle_.clear();
  return first;
}

}  // namespace berth::cuda
