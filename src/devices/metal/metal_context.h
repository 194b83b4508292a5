// Shared parts of the METAL device: autorelease scopes, errors with Metal's messages, and staging memory. An
// AutoreleaseScope belongs to one thread; a StagingPool may be used from any thread and lives as long as its device.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/round_up.h"
#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "devices/metal/metal_cpp.h"

namespace berth::internal::metal {

class MetalDevice;

// Metal returns command buffers, encoders, strings and errors that the innermost scope of the thread releases. What
// must live longer is retained inside the scope.
class AutoreleaseScope {
 public:
  AutoreleaseScope() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~AutoreleaseScope() { pool_->release(); }
  AutoreleaseScope(const AutoreleaseScope&) = delete;
  AutoreleaseScope& operator=(const AutoreleaseScope&) = delete;

 private:
  NS::AutoreleasePool* pool_;
};

// An owned reference to a Metal object. NS::SharedPtr does the same, but calls members of null.
template <class T>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned& other) : object_(other.object_) {
    if (object_ != nullptr) object_->retain();
  }
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) object_->release();
  }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

  // Takes ownership of the reference that a call named new..., alloc or copy returned. Nil stays nil.
  static Owned take(T* object) noexcept {
    Owned owned;
    owned.object_ = object;
    return owned;
  }
  // Retains an object that the innermost AutoreleaseScope would release.
  static Owned keep(T* object) {
    if (object != nullptr) object->retain();
    return take(object);
  }

 private:
  T* object_ = nullptr;
};
template <class T>
Owned<T> taken(T* object) noexcept {
  return Owned<T>::take(object);
}
template <class T>
Owned<T> kept(T* object) {
  return Owned<T>::keep(object);
}

// Empty for nil.
std::string text_of(const NS::String* text);

// The error for a call that returned nil. `error` may be nil: not every call explains itself.
Error driver_error(const NS::Error* error, const char* call, Code code = Code::kDriver, Layer layer = Layer::kDevice);

// The error for work that failed on the GPU.
Error execution_error(const MTL::CommandBuffer& commands);

// Memory that host and GPU can access, for transfers to and from memory that only the GPU can access.
struct StagingPiece {
  MTL::Buffer* buffer = nullptr;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  std::size_t used = 0;
};

class StagingPool {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

  explicit StagingPool(MetalDevice& device) : device_(device) {}

  // A piece of at least `bytes`. kOutOfMemory.
  Result<StagingPiece> take(std::size_t bytes = kPieceBytes);
  // Releases a piece that no work uses any more. A few pieces of the common size are kept.
  void give(const StagingPiece& piece) noexcept;
  // Requires: every piece was released.
  void clear() noexcept;

 private:
  void drop(const StagingPiece& piece) noexcept;

  MetalDevice& device_;
  Mutex mutex_;
  std::vector<StagingPiece> idle_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal::metal
