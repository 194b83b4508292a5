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
  ContextScope(const Driver& driver, Context context) noexcept;
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  // Whether the context is current. Everything inside the scope fails with the driver's own error if it is not.
  Status status() const noexcept { return status_; }

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
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

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
