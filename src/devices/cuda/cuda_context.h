// What every part of the CUDA device shares: making a context current for the length of a scope, and recycled events
// and pinned memory. ContextScope belongs to one thread; the two pools may be used from any thread and live as long
// as their device.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "berth/result.h"
#include "devices/cuda/cuda_driver.h"

namespace berth::cuda {

// Makes `context` current on this thread until the scope ends, and leaves what was current before as it was. A scope
// inside another of the same context calls no driver.
class ContextScope {
 public:
  // `tries` is for destructors, which have nobody to tell and much to clean up.
  ContextScope(const Driver& driver, Context context, int tries = 1) noexcept;
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  // Whether the context is current. Without it no call of the driver may be made.
  Status status() const noexcept { return status_; }
  Result<void> check(Layer layer = Layer::kDevice) const;

 private:
  const Driver& driver_;
  Context outer_;
  Status status_ = kSuccess;
  bool pushed_ = false;
};

// An event that goes back to its pool with its last holder.
using EventPtr = std::shared_ptr<EventTag>;

class EventPool {
 public:
  explicit EventPool(const Driver& driver) : driver_(driver) {}

  // An event that nobody waits for. Requires: the context is current.
  Result<EventPtr> take();
  // Requires: the context is current, and no event is out.
  void clear() noexcept;

 private:
  void give(Event event) noexcept;

  const Driver& driver_;
  std::mutex mutex_;
  std::vector<Event> idle_;
  std::size_t made_ = 0;
};

// Page-locked host memory in pieces of one size, for transfers that neither block the host nor keep its memory.
class PinnedPool {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

  explicit PinnedPool(const Driver& driver) : driver_(driver) {}

  // Requires: the context is current.
  Result<std::byte*> take();
  // Takes back a piece that no stream uses any more.
  void give(std::byte* piece) noexcept;
  // Requires: the context is current.
  Status clear() noexcept;

 private:
  const Driver& driver_;
  std::mutex mutex_;
  std::vector<std::byte*> idle_;
  std::size_t made_ = 0;
};

}  // namespace berth::cuda
