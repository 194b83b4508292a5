// What every part of the METAL device shares: autorelease scopes, errors in Metal's own words, and staging memory.
// AutoreleaseScope belongs to one thread; StagingPool may be used from any thread and lives as long as its device.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "berth/result.h"
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

  // A piece of at least `bytes`. OutOfMemory.
  Result<StagingPiece> take(std::size_t bytes = kPieceBytes);
  // Takes back a piece that no work uses any more. Those of the common size are kept, up to a few.
  void give(const StagingPiece& piece) noexcept;
  // Requires: every piece was given back.
  void clear() noexcept;

 private:
  void drop(const StagingPiece& piece) noexcept;

  MetalDevice& device_;
  std::mutex mutex_;
  std::vector<StagingPiece> idle_;
};

}  // namespace berth::metal
