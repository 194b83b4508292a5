// Buffers for repeated steps: a decode loop requests the same sizes in each step and releases them all at its end.
// Sizes are rounded up to powers of two, each with its own bucket. The buffer released last is returned first, because
// its pages are warm. Memory with different options (usage, host access, alignment, tag) is kept apart. New memory is
// zeroed; reused memory is zeroed only on request. After the first step nothing is allocated. Works on every device.
// Any thread may call. The buffers may outlive this object, which only holds handles.
//
// Unlike the caching pool (caching_pool.h), which is a layer of an allocator stack and manages blocks, this class
// manages buffers: it can release a whole step at once, and it detects a handle that is released twice, also after its
// memory was given to the next user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/tensor/buffer.h"

namespace berth {

struct BufferRequest {
  DType dtype = DType::kF32;
  Shape shape{};
  BufferOptions options{};
};

struct StepBuffersCounters {
  std::uint64_t fresh = 0;      // buffers allocated
  std::uint64_t reused = 0;     // requests served by a buffer released before
  std::uint64_t reclaimed = 0;  // destroyed by their user without release() or reset()
  std::size_t used = 0;         // in use
  std::size_t free = 0;         // in buckets
  std::size_t registered = 0;
  std::size_t bytes = 0;  // held in total, without registered buffers
};
std::string to_string(const StepBuffersCounters& counters);

class StepBuffers {
 public:
  // Without an allocator, allocate() and register_existing() fail with kInvalidArgument.
  // At most `most_used` buffers are in use at once. A program that needs more has probably forgotten a reset();
  // allocate() then fails instead of growing until memory is exhausted. Before it grows far, or if memory is exhausted,
  // it reclaims buffers whose handles were destroyed and that no queue uses; the counters show how many.
  explicit StepBuffers(AllocatorPtr allocator, std::size_t most_used = 65'536);
  ~StepBuffers();
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  // Returns a buffer from its bucket, or a new one. options.zero requests zeroed memory in both cases. A reused buffer
  // keeps the label of its first user. kOutOfMemory from the allocator, or if `most_used` buffers are in use;
  // kInvalidArgument for the shape.
  Result<Buffer> allocate(DType dtype, const Shape& shape, const BufferOptions& options = {});

  // Allocates all requests or none. The batch costs at most one residency commit, at the next submit; an empty batch
  // costs none.
  Result<std::vector<Buffer>> allocate_batch(std::span<const BufferRequest> requests);

  // Releases a buffer: the handle that allocate() returned, or a copy of it. kNotOwned if it does not come from this
  // object, is a view of such a buffer, or was released before, by itself or by reset().
  Result<void> release(const Buffer& buffer);

  // Releases all buffers at the end of a step. O(buffers in use).
  void reset() noexcept;

  // Calls reset(), then drops all memory and registrations.
  void clear() noexcept;

  // Adds a buffer of another allocator to the device's residency set until clear(). It is never reused. Registering the
  // same storage again changes nothing. kInvalidArgument for a buffer of another device, which stays lazy if it was.
  Result<void> register_existing(const Buffer& buffer);

  StepBuffersCounters counters() const;

 private:
  struct Entry {
    Buffer whole;
    std::size_t bucket;
    std::size_t used_at;   // position in used_, or kFree
    std::uint64_t handle;  // id of the buffer that its user has; ids are never reused
  };
  struct Bucket {
    std::vector<std::uint32_t> spare;  // last in, first out
    std::size_t entries = 0;           // spare or in use
  };
  static constexpr std::size_t kFree = ~std::size_t{0};
  static constexpr std::size_t kSizes = 64;
  static constexpr std::size_t kLookForDropped = 4096;

  std::size_t bucket_of(std::size_t rounded, const BufferOptions& options) BERTH_REQUIRES(mutex_);
  Result<void> add_fresh(std::size_t bucket, std::size_t rounded, const BufferOptions& options) BERTH_REQUIRES(mutex_);
  Result<Buffer> take(DType dtype, const Shape& shape, const BufferOptions& options) BERTH_REQUIRES(mutex_);
  void give_back(std::uint32_t index) noexcept BERTH_REQUIRES(mutex_);
  void reclaim_dropped() noexcept BERTH_REQUIRES(mutex_);

  const AllocatorPtr allocator_;
  const std::size_t most_used_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ BERTH_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::uint32_t> by_storage_ BERTH_GUARDED_BY(mutex_);
  std::vector<BufferOptions> kinds_ BERTH_GUARDED_BY(mutex_);  // only the fields that keep memory apart
  std::vector<Bucket> buckets_ BERTH_GUARDED_BY(mutex_);       // kSizes per kind
  std::vector<std::uint32_t> used_ BERTH_GUARDED_BY(mutex_);
  std::size_t look_for_dropped_at_ BERTH_GUARDED_BY(mutex_) = kLookForDropped;
  std::unordered_map<std::uint64_t, Buffer> registered_ BERTH_GUARDED_BY(mutex_);
  std::uint64_t fresh_ BERTH_GUARDED_BY(mutex_) = 0;
  std::uint64_t reused_ BERTH_GUARDED_BY(mutex_) = 0;
  std::uint64_t reclaimed_ BERTH_GUARDED_BY(mutex_) = 0;
  std::size_t bytes_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth
