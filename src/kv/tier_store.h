// Where the blocks of a tier are kept: slots of equal size in the memory of an allocator, or in an unnamed file. Pages
// are moved by the queue of the cache, after the work that was recorded before. Used under the lock of the cache.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "berth/base/result.h"
#include "berth/kv/cache.h"
#include "berth/memory/queue.h"

namespace berth::internal::kv_cache {

class TierStore {
 public:
  TierStore() = default;
  TierStore(const TierStore&) = delete;
  TierStore& operator=(const TierStore&) = delete;
  virtual ~TierStore() = default;

  // Records a copy of a page of the cache to byte `at` of the store, or from there to a page. The page may be reused by
  // work that is recorded afterwards.
  virtual Result<void> store(std::size_t at, const Window& page, Queue& queue) = 0;
  virtual Result<void> load(std::size_t at, const Window& page, Queue& queue) = 0;
  // Copies bytes of this store to another one.
  virtual Result<void> move_to(TierStore& target, std::size_t from, std::size_t to, std::size_t bytes,
                               Queue& queue) = 0;
  // Copies bytes of the host. They may be reused when the call returns.
  virtual Result<void> store_bytes(std::size_t at, std::span<const std::byte> bytes, Queue& queue) = 0;
};

// Slots of `slot` bytes in the memory of the tier. Errors of the allocator and its device; kReadOnly if it cannot be
// written; kIo if the file cannot be created.
Result<std::unique_ptr<TierStore>> make_tier_store(const kv::Tier& tier, std::size_t slot, std::size_t slots,
                                                   Queue& queue);

}  // namespace berth::internal::kv_cache
