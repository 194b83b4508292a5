#include "devices/metal/metal_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "berth/base/mutex.h"
#include "devices/metal/metal_device.h"

namespace berth::internal::metal {
namespace {

constexpr std::size_t kMostIdle = 8;

Block block_of(const StagingPiece& piece) noexcept {
  return {.handle = handle_of(piece.buffer), .host = piece.host, .bytes = piece.bytes};
}

}  // namespace

std::string text_of(const NS::String* text) {
  const char* const bytes = text == nullptr ? nullptr : text->utf8String();
  return bytes == nullptr ? "" : bytes;
}

Error driver_error(const NS::Error* error, const char* call, Code code, Layer layer) {
  const std::string words = error == nullptr ? "" : text_of(error->localizedDescription());
  return Error::with_text(
      code, layer,
      words.empty() ? fmt::format("{} failed without a reason", call) : fmt::format("{} says: {}", call, words));
}

Error execution_error(const MTL::CommandBuffer& commands) {
  const AutoreleaseScope scope;
  const NS::Error* const error = commands.error();
  Code code = Code::kDriver;
  switch (error == nullptr ? 0 : error->code()) {
    case MTL::CommandBufferErrorOutOfMemory: code = Code::kOutOfMemory; break;
    case MTL::CommandBufferErrorAccessRevoked:
    case MTL::CommandBufferErrorDeviceRemoved: code = Code::kDeviceLost; break;
    default: break;
  }
  return driver_error(error, "the Metal command buffer failed and", code, Layer::kQueue);
}

Result<StagingPiece> StagingPool::take(std::size_t bytes) {
  if (bytes <= kPieceBytes) {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      const StagingPiece piece = idle_.back();
      idle_.pop_back();
      return piece;
    }
  }
  StagingPiece piece{.bytes = std::max(bytes, kPieceBytes)};
  piece.buffer = device_.native_device().newBuffer(piece.bytes, MTL::ResourceStorageModeShared);
  if (piece.buffer == nullptr)
    return Error(Code::kOutOfMemory, Layer::kQueue, "Metal has no {} bytes for staging a transfer", piece.bytes);
  piece.host = static_cast<std::byte*>(piece.buffer->contents());
  if (Residency* set = device_.residency()) set->add(block_of(piece));
  return piece;
}

void StagingPool::give(const StagingPiece& piece) noexcept {
  if (piece.bytes == kPieceBytes) {
    try {
      const MutexLock lock(mutex_);
      if (idle_.size() < kMostIdle) {
        idle_.push_back(piece);
        idle_.back().used = 0;
        return;
      }
    } catch (...) {
      // No memory to keep the piece: it is freed.
    }
  }
  drop(piece);
}

void StagingPool::drop(const StagingPiece& piece) noexcept {
  if (Residency* set = device_.residency()) set->remove(block_of(piece));
  piece.buffer->release();
}

void StagingPool::clear() noexcept {
  std::vector<StagingPiece> dropped;
  {
    const MutexLock lock(mutex_);
    dropped.swap(idle_);
  }
  for (const StagingPiece& piece : dropped) drop(piece);
}

}  // namespace berth::internal::metal
