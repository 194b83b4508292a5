// Buffers for steps that repeat: a decode loop takes the same sizes again and again and gives them all back at once.
// Sizes are rounded to powers of two, each with its own bucket; the buffer returned last is handed out first, because
// its pages are warm. Memory of different kinds (usage, host access, alignment, tag) is kept apart. Fresh memory is
// zeroed, reused memory is not unless asked. After the first step nothing is allocated. Works on every device. Any
// thread may call; the buffers outlive the pool, which only keeps handles.
//
// Unlike the caching pool (pool.h), which is a layer of an allocator stack and sees blocks, this one is used by name:
// it can give back a whole step at once, and it refuses what is returned twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "berth/tensor/buffer.h"

namespace berth {

struct BufferRequest {
  DType dtype = DType::kF32;
  Shape shape{};
  BufferOptions options{};
};

struct StepBuffersCounters {
  std::uint64_t fresh = 0;      // buffers allocated
  std::uint64_t reused = 0;     // buffers handed out again
  std::uint64_t reclaimed = 0;  // dropped without release() or reset(), and found by the pool itself
  std::size_t used = 0;         // handed out now
  std::size_t free = 0;         // waiting in buckets
  std::size_t registered = 0;
  std::size_t bytes = 0;  // held in all, registered ones not counted
};

class StepBuffers {
 public:
  // At most `most_used` buffers are handed out at once: past that a reset() was forgotten, and the pool says so instead
  // of growing until the machine is full. Before it grows far, or when there is no memory, it takes back by itself what
  // was dropped and is no longer in use by a queue; that shows in the counters.
  explicit StepBuffers(AllocatorPtr allocator, std::size_t most_used = 65'536);
  ~StepBuffers();
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  // A buffer of the size, from its bucket or fresh. options.zero asks for zeroed memory in either case. The label is
  // the first user's. OutOfMemory from the allocator, or when `most_used` are handed out; InvalidArgument for the
  // shape.
  Result<Buffer> allocate(DType dtype, const Shape& shape, const BufferOptions& options = {});

  // All of them or none. Together they cost at most one residency commit, at the next submit; an empty batch none.
  Result<std::vector<Buffer>> allocate_batch(std::span<const BufferRequest> requests);

  // Takes a buffer back. NotOwned if it is not this pool's or was returned before.
  Result<void> release(const Buffer& buffer);

  // Takes everything back at the end of a step. O(buffers handed out).
  void reset() noexcept;

  // reset(), and lets go of all memory and registrations.
  void clear() noexcept;

  // Puts a buffer from elsewhere under the device's residency until clear(). It is never recycled. Registering the same
  // storage again changes nothing. InvalidArgument for a buffer of another device.
  Result<void> register_existing(const Buffer& buffer);

  StepBuffersCounters counters() const;

 private:
  struct Entry {
    Buffer whole;
    std::size_t bucket;
    std::size_t used_at;  // position in used_, or kFree
  };
  struct Bucket {
    std::vector<std::uint32_t> spare;  // last in, first out
    std::size_t entries = 0;           // spare or handed out
  };
  static constexpr std::size_t kFree = ~std::size_t{0};
  static constexpr std::size_t kSizes = 64;
  static constexpr std::size_t kLookForDropped = 4096;

  std::size_t bucket_of(std::size_t rounded, const BufferOptions& options);
  Result<void> add_fresh(std::size_t bucket, std::size_t rounded, const BufferOptions& options);
  Result<Buffer> take(DType dtype, const Shape& shape, const BufferOptions& options);
  void give_back(std::uint32_t index) noexcept;
  void reclaim_dropped() noexcept;

  const AllocatorPtr allocator_;
  const std::size_t most_used_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_storage_;
  std::vector<BufferOptions> kinds_;  // what sets memory apart, and nothing else of them
  std::vector<Bucket> buckets_;       // kSizes for each kind
  std::vector<std::uint32_t> used_;
  std::size_t look_for_dropped_at_ = kLookForDropped;
  std::unordered_map<std::uint64_t, Buffer> registered_;
  std::uint64_t fresh_ = 0, reused_ = 0, reclaimed_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace berth
