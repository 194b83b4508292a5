// What every part of the METAL device shares: autorelease scopes, errors in Metal's own words, and staging memory.
// AutoreleaseScope belongs to one thread; StagingPool may be used from any thread and lives as long as its device.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/round_up.h"
#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "devices/metal/metal_cpp.h"

namespace berth::metal {

class MetalDevice;

// Metal hands out command buffers, encoders, strings and errors that the innermost scope of the thread lets go of. What
// must live longer is retained inside it.
class AutoreleaseScope {
 public:
  AutoreleaseScope() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~AutoreleaseScope() { pool_->release(); }
  AutoreleaseScope(const AutoreleaseScope&) = delete;
  AutoreleaseScope& operator=(const AutoreleaseScope&) = delete;

 private:
  NS::AutoreleasePool* pool_;
};

// A reference to one of Metal's objects, released with it. NS::SharedPtr does the same and calls members of null.
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

  // Takes over the reference that a call named new..., alloc or copy gave. Nil stays nil.
  static Owned take(T* object) noexcept {
    Owned owned;
    owned.object_ = object;
    return owned;
  }
  // Keeps an object that the innermost AutoreleaseScope would let go of.
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

// What Metal says about a call that gave nothing. `error` may be nil: not every call explains itself.
Error driver_error(const NS::Error* error, const char* call, Code code = Code::kDriver, Layer layer = Layer::kDevice);

// What Metal says about work that failed on the GPU.
Error execution_error(const MTL::CommandBuffer& commands);

// Memory that both sides reach, on the way to or from memory that only the GPU does.
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
  // Takes back a piece that no work uses any more. Those of the common size are kept, up to a few.
  void give(const StagingPiece& piece) noexcept;
  // Requires: every piece was given back.
  void clear() noexcept;

 private:
  void drop(const StagingPiece& piece) noexcept;

  MetalDevice& device_;
  Mutex mutex_;
  std::vector<StagingPiece> idle_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::metal
