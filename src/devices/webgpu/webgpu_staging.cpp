#include "devices/webgpu/webgpu_staging.h"

#include <algorithm>

#include "base/try.h"
#include "berth/base/mutex.h"

namespace berth::internal::webgpu {
namespace {

// Two chunks of a kind keep host and device busy at once; more would only be colder in the cache.
constexpr std::size_t kInFlight = 2;

wgpu::Flags usage_of(ChunkKind kind, bool maps_storage) noexcept {
  switch (kind) {
    case ChunkKind::kUpload: return wgpu::kUsageMapWrite | wgpu::kUsageCopySrc;
    case ChunkKind::kReadback: return wgpu::kUsageMapRead | wgpu::kUsageCopyDst;
    case ChunkKind::kConstants:
      return wgpu::kUsageUniform | wgpu::kUsageCopyDst | (maps_storage ? wgpu::kUsageMapWrite : 0);
    case ChunkKind::kScratch: break;
  }
  return wgpu::kUsageStorage | wgpu::kUsageCopySrc | wgpu::kUsageCopyDst;
}

bool is_mapped_when_taken(ChunkKind kind, bool maps_storage) noexcept {
  return kind == ChunkKind::kUpload || (kind == ChunkKind::kConstants && maps_storage);
}

}  // namespace

Result<Chunk> Staging::make(ChunkKind kind) {
  Chunk chunk{.bytes = kind == ChunkKind::kConstants ? kConstantsBytes : kChunkBytes, .kind = kind};
  BERTH_TRY_ASSIGN(chunk.buffer,
                   context_.create_buffer(usage_of(kind, context_.maps_storage()), chunk.bytes, "berth staging"));
  chunk.id = last_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  return chunk;
}

Result<Chunk> Staging::take(ChunkKind kind) {
  Chunk chunk;
  {
    const MutexLock lock(mutex_);
    auto& resting = resting_[static_cast<std::size_t>(kind)];
    // The chunk that became free last is the warmest.
    auto found = resting.end();
    for (auto it = resting.end(); it != resting.begin() && found == resting.end();)
      if (context_.is_done((--it)->busy_until)) found = it;
    if (found == resting.end() && resting.size() >= kInFlight) found = resting.begin();
    if (found != resting.end()) {
      chunk = *found;
      resting.erase(found);
    }
  }
  if (chunk.buffer == nullptr) {
    BERTH_TRY_ASSIGN(chunk, make(kind));
  } else if (auto ok = context_.wait(chunk.busy_until); !ok) {
    discard(chunk);
    return ok.error();
  }
  if (is_mapped_when_taken(kind, context_.maps_storage())) {
    auto mapped = context_.map(chunk.buffer, wgpu::kMapWrite, 0, chunk.bytes);
    if (!mapped) {
      discard(chunk);
      return mapped.error();
    }
    chunk.mapped = *mapped;
  }
  return chunk;
}

void Staging::unmap(Chunk& chunk) noexcept {
  if (chunk.mapped == nullptr) return;
  context_.calls().BufferUnmap(chunk.buffer);
  chunk.mapped = nullptr;
}

void Staging::give(Chunk chunk, Submission busy_until) noexcept {
  unmap(chunk);
  chunk.busy_until = busy_until;
  try {
    const MutexLock lock(mutex_);
    resting_[static_cast<std::size_t>(chunk.kind)].push_back(chunk);
  } catch (...) {
    discard(chunk);  // no memory to remember it by
  }
}

void Staging::discard(const Chunk& chunk) noexcept {
  // The driver keeps the memory until submitted work that uses it is done, and no longer: a bind group that a queue
  // caches must not keep it.
  context_.calls().BufferDestroy(chunk.buffer);
  context_.calls().BufferRelease(chunk.buffer);
}

std::size_t Staging::trim(std::size_t keep_bytes) noexcept {
  const MutexLock lock(mutex_);
  std::size_t rests = 0;
  for (const auto& resting : resting_)
    for (const Chunk& chunk : resting) rests += chunk.bytes;
  std::size_t freed = 0;
  for (auto& resting : resting_) {
    for (auto it = resting.begin(); it != resting.end() && rests - freed > keep_bytes;) {
      freed += it->bytes;
      discard(*it);
      it = resting.erase(it);
    }
  }
  return freed;
}

}  // namespace berth::internal::webgpu
