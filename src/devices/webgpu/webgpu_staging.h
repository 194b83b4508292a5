// Reused staging memory: chunks of one size that the queues of a device share, so that transfers use warm pages and
// need no new driver buffers. A chunk is taken by one queue, used by one recording, and given back with the submission
// that must be done before it is taken again. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "berth/base/mutex.h"
#include "devices/webgpu/webgpu_context.h"

namespace berth::internal::webgpu {

enum class ChunkKind : std::uint8_t {
  kUpload,     // mapped when taken, to be unmapped before it is used
  kReadback,   // to be mapped when its submission is over
  kConstants,  // bound as uniforms; mapped when taken if the device maps storage
  kScratch,    // never leaves the device
};

struct Chunk {
  wgpu::Buffer buffer = nullptr;
  std::byte* mapped = nullptr;  // null if the chunk is not mapped
  std::size_t bytes = 0;
  std::uint64_t id = 0;
  ChunkKind kind = ChunkKind::kUpload;
  Submission busy_until = 0;
};

inline constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
inline constexpr std::size_t kConstantsBytes = std::size_t{64} << 10;

class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}
  ~Staging() { trim(0); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // A chunk that no work uses. Waits for the oldest in flight instead of creating a third of its kind.
  Result<Chunk> take(ChunkKind kind);
  // Requires: unmapped.
  void give(Chunk chunk, Submission busy_until) noexcept;
  // For a chunk that could not be mapped or whose work is unknown.
  void discard(const Chunk& chunk) noexcept;
  // Unmaps a mapped chunk, which is required before work that uses it is submitted.
  void unmap(Chunk& chunk) noexcept;

  // Frees unused chunks until at most `keep_bytes` remain. Returns the bytes freed.
  std::size_t trim(std::size_t keep_bytes) noexcept;
  std::uint64_t chunks_made() const noexcept { return last_id_.load(std::memory_order_relaxed); }

 private:
  Result<Chunk> make(ChunkKind kind);

  Context& context_;
  Mutex mutex_;
  std::array<std::vector<Chunk>, 4> resting_ BERTH_GUARDED_BY(mutex_);  // in the order given back
  std::atomic<std::uint64_t> last_id_{0};
};

}  // namespace berth::internal::webgpu
