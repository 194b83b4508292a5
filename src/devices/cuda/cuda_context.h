// Shared parts of the CUDA device: scopes that make a context current, and recycled events and pinned memory. A
// ContextScope belongs to one thread; the two pools may be used from any thread and live as long as their device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "devices/cuda/cuda_driver.h"

namespace berth::internal::cuda {

class CudaDevice;

// Makes the context of a device current on this thread until the scope ends, then restores the previous one. A scope
// inside another of the same device calls no driver. A thread that had no context keeps that of CUDA:0, which CUDA's
// runtime would choose there too, so that it need not be set and removed each time.
class ContextScope {
 public:
  enum class Trust : std::uint8_t {
    kLook,    // ask the driver for the current context
    kMemory,  // assume the context of last time: only for calls with a stream, made by call()
  };

  // `tries` is for destructors, which cannot report an error and have much to release.
  explicit ContextScope(const CudaDevice& device, int tries = 1) noexcept;
  ContextScope(const CudaDevice& device, Trust trust) noexcept;
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  // Fails with the error of the driver if the context is not current; the driver must not be called then.
  Status status() const noexcept { return status_; }
  const char* failed_call() const noexcept { return failed_call_; }
  Result<void> check(Layer layer = Layer::kDevice) const;

  // Calls the driver. If other code changed the current context of the thread meanwhile, which the driver detects
  // before it does anything, the context is made current and the call is repeated.
  template <class Call>
  Status call(const Call& call) {
    const Status status = call();
    if (!from_memory_ || (status != kErrorInvalidContext && status != kErrorInvalidHandle)) return status;
    return look_again() ? call() : status;
  }

  // Called before a device releases its context: invalidates what threads remember about it.
  static void forget(const CudaDevice& device) noexcept;

 private:
  void enter(int tries) noexcept;
  Status make_current() noexcept;
  bool look_again() noexcept;

  const CudaDevice& device_;
  const Context outer_;
  Status status_ = kSuccess;
  const char* failed_call_ = "";
  bool from_memory_ = false;
  bool entered_ = false;
  bool pushed_ = false;
};

// An event that returns to its pool with its last holder.
using EventPtr = std::shared_ptr<EventTag>;

class EventPool {
 public:
  explicit EventPool(const CudaDevice& device) : device_(device) {}

  // An event that nothing waits for.
  Result<EventPtr> take();
  // Requires: the context is current, and no event is out.
  void clear() noexcept;

 private:
  void give(Event event) noexcept;

  const CudaDevice& device_;
  Mutex mutex_;
  std::vector<Event> idle_ BERTH_GUARDED_BY(mutex_);
  std::size_t made_ BERTH_GUARDED_BY(mutex_) = 0;
};

// Page-locked host memory in pieces of one size, for transfers that neither block the host nor keep its memory in use.
class PinnedPool {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

  explicit PinnedPool(const CudaDevice& device) : device_(device) {}

  Result<std::byte*> take();
  // Releases a piece that no stream uses any more.
  void give(std::byte* piece) noexcept;
  // Requires: the context is current.
  Status clear() noexcept;

 private:
  const CudaDevice& device_;
  Mutex mutex_;
  std::vector<std::byte*> idle_ BERTH_GUARDED_BY(mutex_);
  std::size_t made_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth::internal::cuda
