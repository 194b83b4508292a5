#include "run/pooled_blocks.h"

#include <algorithm>
#include <new>

#include "base/atomic_peak.h"

namespace berth::internal::replay {

PooledBlocks::~PooledBlocks() {
  for (Part& part : parts_) {
    const ScopedLock guard(part.lock);
    for (auto& [address, entry] : part.entries) pool_->release(entry.block);
  }
}

void* PooledBlocks::allocate(std::uint64_t bytes, std::uint64_t alignment, const PooledFor& owner) noexcept {
  const Result<Block> block = pool_->allocate({.bytes = bytes, .alignment = alignment});
  if (!block) return nullptr;
  const std::uintptr_t address = block->host != nullptr ? reinterpret_cast<std::uintptr_t>(block->host) : block->handle;
  try {
    Part& part = parts_[index(address)];
    const ScopedLock guard(part.lock);
    part.entries.emplace(address, Entry{*block, bytes, owner});
  } catch (const std::bad_alloc&) {
    pool_->release(*block);
    return nullptr;
  }
  const std::uint64_t now = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  raise_to(peak_, now);
  raise_to(recent_, now);
  if (owner.beside) raise_to(beside_peak_, beside_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  return reinterpret_cast<void*>(address);
}

std::optional<PooledFor> PooledBlocks::release(std::uintptr_t address) noexcept {
  Block block;
  std::uint64_t bytes = 0;
  PooledFor owner;
  {
    Part& part = parts_[index(address)];
    const ScopedLock guard(part.lock);
    const auto at = part.entries.find(address);
    if (at == part.entries.end()) return std::nullopt;
    block = at->second.block;
    bytes = at->second.bytes;
    owner = at->second.owner;
    part.entries.erase(at);
  }
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (owner.beside) beside_.fetch_sub(bytes, std::memory_order_relaxed);
  pool_->release(block);
  return owner;
}

std::uint64_t PooledBlocks::size_of(std::uintptr_t address) const noexcept {
  const Part& part = parts_[index(address)];
  const ScopedLock guard(part.lock);
  const auto at = part.entries.find(address);
  return at == part.entries.end() ? 0 : at->second.bytes;
}

std::uint64_t PooledBlocks::give_back(unsigned periods) noexcept {
  if (periods == 0) return 0;
  const std::uint64_t used = bytes_.load(std::memory_order_relaxed);
  std::uint64_t need = 0;
  {
    const ScopedLock guard(period_lock_);
    const std::uint64_t ended = recent_.exchange(used, std::memory_order_relaxed);
    room_ = std::max(room_, ended);
    need = std::max(periods > 1 ? 0 : ended, used);
    // A load that varies a little keeps its pages.
    if (need > room_ / 4 * 3) return 0;
    room_ = need;
  }
  const std::uint64_t given = pool_->trim(need - used);
  given_back_.fetch_add(given, std::memory_order_relaxed);
  return given;
}

std::uint64_t PooledBlocks::give_back_all() noexcept {
  const std::uint64_t given = pool_->trim();
  given_back_.fetch_add(given, std::memory_order_relaxed);
  return given;
}

void PooledBlocks::count(ReplayCounters& counters) const noexcept {
  counters.pool_bytes = bytes_.load(std::memory_order_relaxed);
  counters.pool_peak = peak_.load(std::memory_order_relaxed);
  counters.given_back += given_back_.load(std::memory_order_relaxed);
  counters.beside_peak = beside_peak_.load(std::memory_order_relaxed);
}

}  // namespace berth::internal::replay
