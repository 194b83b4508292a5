#include "run/run_arena.h"

#include <algorithm>
#include <utility>

#include "base/os/processors.h"
#include "base/try.h"
#include "run/time_after.h"

namespace berth::internal::replay {
namespace {

std::uintptr_t address_of(const Block& block) noexcept {
  return block.host != nullptr ? reinterpret_cast<std::uintptr_t>(block.host) : block.handle;
}

// The end of the highest live slot.
std::uint64_t live_end(const RunArena& arena) noexcept {
  const ScopedLock guard(arena.lock);
  return arena.follow.live().empty() ? 0 : arena.follow.live().back().end;
}

}  // namespace

unsigned ArenaSet::cap(unsigned max_arenas) noexcept {
  if (max_arenas == ReplayOptions::kOnePerProcessor) return usable_processors();
  return max_arenas == 0 ? ReplayOptions::kMaxArenas : max_arenas;
}

ArenaSet::~ArenaSet() {
  const std::size_t size = size_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < size; ++i) {
    const std::unique_ptr<RunArena> arena(arenas_[i].load(std::memory_order_relaxed));
    if (arena->bytes.load(std::memory_order_relaxed) != 0) memory_->release(arena->block);
  }
}

RunArena* ArenaSet::add() {
  const std::size_t size = size_.load(std::memory_order_relaxed);
  // Room for as many retired arenas as the set may have in use is not a given: a retired one is used again when it is
  // empty, and until then counts.
  if (size == arenas_.size()) return nullptr;
  auto arena = std::make_unique<RunArena>();
  arenas_[size].store(arena.get(), std::memory_order_relaxed);
  size_.store(size + 1, std::memory_order_release);
  return arena.release();
}

RunArena* ArenaSet::choose(std::uint64_t need) {
  // The smallest that is large enough, so that large ones are left for large runs and decay if there are none. Else the
  // largest, which has the least to grow. Of equals the one that was used last, which is in the caches. One with live
  // slots only if there is no other: its run would be checked.
  RunArena* best = nullptr;
  bool best_live = false;
  const std::size_t size = size_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < size; ++i) {
    RunArena& arena = *arenas_[i].load(std::memory_order_relaxed);
    if (arena.in_use) continue;
    bool live = false;
    {
      const ScopedLock guard(arena.lock);
      if (arena.retired) continue;
      live = !arena.follow.live().empty();
    }
    const std::uint64_t has = arena.resident.load(std::memory_order_relaxed);
    const std::uint64_t best_has = best == nullptr ? 0 : best->resident.load(std::memory_order_relaxed);
    const bool fits = has >= need, best_fits = best != nullptr && best_has >= need;
    const bool better = best == nullptr || (live != best_live   ? best_live
                                            : fits != best_fits ? fits
                                            : has == best_has   ? arena.last_use > best->last_use
                                            : fits              ? has < best_has
                                                                : has > best_has);
    if (!better) continue;
    best = &arena;
    best_live = live;
  }
  return best;
}

RunArena* ArenaSet::take(RunArena* arena, std::uint64_t need) noexcept {
  arena->in_use = true;
  arena->need = need;
  arena->need_now = std::max(arena->need_now, need);
  peak_ = std::max(peak_, ++in_use_);
  return arena;
}

RunArena* ArenaSet::acquire(std::uint64_t need, std::chrono::steady_clock::time_point deadline, bool& waited) {
  const MutexLock guard(mutex_);
  // Who comes later does not overtake those that wait.
  if (in_use_ < cap_ && waiting_.empty()) {
    RunArena* arena = choose(need);
    if (arena == nullptr) arena = add();
    if (arena != nullptr) return take(arena, need);
  }
  if (options_.when_full == WhenFull::kPool) return nullptr;
  waited = true;
  Waiter self{.need = need};
  waiting_.push_back(&self);
  // As long as runs end, it is this one's turn some time.
  const auto patience = deadline - std::chrono::steady_clock::now();
  std::uint64_t ended = uses_;
  while (self.given == nullptr) {
    if (self.woken.wait_until(mutex_, deadline)) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now < deadline) continue;
    if (uses_ == ended || patience <= patience.zero()) break;
    ended = uses_;
    deadline = time_after(now, std::chrono::ceil<std::chrono::milliseconds>(patience));
  }
  if (self.given == nullptr) std::erase(waiting_, &self);
  return self.given;
}

void ArenaSet::serve_waiting() noexcept {
  while (!waiting_.empty() && in_use_ < cap_) {
    Waiter& first = *waiting_.front();
    RunArena* arena = choose(first.need);
    if (arena == nullptr) return;
    first.given = take(arena, first.need);
    waiting_.pop_front();
    first.woken.notify_one();  // under the lock: the waiter is gone as soon as it sees the arena
  }
}

Result<void> ArenaSet::fit(RunArena*& arena, std::uint64_t need, std::uint64_t alignment) {
  const std::uintptr_t base = arena->base.load(std::memory_order_relaxed);
  const std::uint64_t has = arena->bytes.load(std::memory_order_relaxed);
  if (need > has || (need != 0 && base % alignment != 0)) {
    bool live = false;
    {
      const ScopedLock guard(arena->lock);
      live = !arena->follow.live().empty();
      if (live) arena->retired = true;
    }
    // Memory that grows again and again, as with a cache that gets longer, is taken in larger steps, since each one
    // faults all pages in again. What is not faulted in costs only addresses; where that cannot be chosen, every growth
    // is exact.
    constexpr std::uint64_t kGrowth = 4, kMostGrown = std::uint64_t{1} << 40;
    std::uint64_t grown = has_pages() && has != 0 && need < kMostGrown ? kGrowth * need : need;
    if (live) {
      // Freed by the last release of its slots.
      const MutexLock guard(mutex_);
      RunArena* other = add();
      if (other == nullptr) {
        const ScopedLock lock(arena->lock);
        arena->retired = false;
        return Error(Code::kOutOfMemory, Layer::kPlan,
                     "{} arenas hold memory that is live: release outputs of earlier runs", ReplayOptions::kMaxArenas);
      }
      other->in_use = true;
      other->need = other->need_now = need;
      arena->in_use = false;
      RunArena* old = std::exchange(arena, other);
      old->need = old->need_now = old->need_before = 0;
    } else {
      drop_memory(*arena);
    }
    const auto allocate = [&](std::uint64_t bytes) {
      return memory_->allocate(
          {.bytes = bytes + options_.arena_slack, .alignment = alignment, .label = Name("replay arena")});
    };
    Result<Block> taken = allocate(grown);
    if (!taken && grown != need) {
      // A budget that has room for the run need not have room for addresses.
      grown = need;
      taken = allocate(grown);
    }
    BERTH_TRY_ASSIGN(const Block block, std::move(taken));
    const ScopedLock guard(arena->lock);
    arena->block = block;
    arena->base.store(address_of(block), std::memory_order_relaxed);
    arena->bytes.store(grown, std::memory_order_relaxed);
    arena->resident.store(has_pages() ? 0 : grown, std::memory_order_relaxed);
  }
  const std::uint64_t resident = arena->resident.load(std::memory_order_relaxed);
  if (resident < need) {
    if (options_.pages.fault_in) options_.pages.fault_in(arena->block, resident, need - resident);
    arena->resident.store(need, std::memory_order_relaxed);
  }
  return {};
}

void ArenaSet::drop_memory(RunArena& arena) noexcept {
  Block block;
  {
    const ScopedLock guard(arena.lock);
    if (arena.bytes.load(std::memory_order_relaxed) == 0) return;
    block = std::exchange(arena.block, {});
    arena.bytes.store(0, std::memory_order_relaxed);
    arena.base.store(0, std::memory_order_relaxed);
    arena.resident.store(0, std::memory_order_relaxed);
  }
  memory_->release(block);
}

void ArenaSet::release(RunArena& arena) noexcept {
  const MutexLock guard(mutex_);
  arena.in_use = false;
  arena.last_use = ++uses_;
  --in_use_;
  serve_waiting();
}

RunArena* ArenaSet::find(std::uintptr_t address) const noexcept {
  const std::size_t size = size_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < size; ++i) {
    RunArena* arena = arenas_[i].load(std::memory_order_relaxed);
    if (arena->contains(address)) return arena;
  }
  return nullptr;
}

void ArenaSet::reclaim(RunArena& arena) noexcept {
  const MutexLock guard(mutex_);
  {
    const ScopedLock lock(arena.lock);
    if (!arena.retired || !arena.follow.live().empty()) return;
  }
  drop_memory(arena);
  {
    const ScopedLock lock(arena.lock);
    arena.retired = false;
  }
  serve_waiting();
}

void ArenaSet::turn_period() noexcept {
  const std::size_t size = size_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < size; ++i) {
    RunArena& arena = *arenas_[i].load(std::memory_order_relaxed);
    arena.need_before = arena.need_now;
    arena.need_now = arena.in_use ? arena.need : 0;
  }
}

std::uint64_t ArenaSet::shrink(RunArena& arena, std::uint64_t keep) noexcept {
  keep = std::max(keep, live_end(arena));
  const std::uint64_t resident = arena.resident.load(std::memory_order_relaxed);
  if (keep >= resident) return 0;
  if (has_pages()) {
    options_.pages.give_back(arena.block, keep, resident - keep);
    arena.resident.store(keep, std::memory_order_relaxed);
    return resident - keep;
  }
  // Without pages that come and go, a block that is much too large is released, and the next run takes one that fits.
  if (live_end(arena) != 0 || keep > resident / 4 * 3) return 0;
  drop_memory(arena);
  return resident;
}

std::uint64_t ArenaSet::shrink_idle() noexcept {
  std::uint64_t bytes = 0;
  const std::size_t size = size_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < size; ++i) {
    RunArena& arena = *arenas_[i].load(std::memory_order_relaxed);
    if (!arena.in_use) bytes += shrink(arena, std::max(arena.need_now, arena.need_before));
  }
  given_back_ += bytes;
  return bytes;
}

ArenaSet::GivenBack ArenaSet::give_back(const RunArena* latest) noexcept {
  if (options_.decay.count() <= 0) return {};
  const MutexLock guard(mutex_);
  const auto time = now();
  if (!period_set_) {
    period_set_ = true;
    period_end_ = time_after(time, options_.decay);
  }
  if (time < period_end_) return {};
  GivenBack given{.periods = 1};
  turn_period();
  if (time - period_end_ >= options_.decay) {
    // A whole period went by without a run, but for the one that just ended.
    given.periods = 2;
    turn_period();
    const std::size_t size = size_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < size; ++i) {
      RunArena* arena = arenas_[i].load(std::memory_order_relaxed);
      if (arena == latest) arena->need_before = arena->need;
    }
  }
  period_end_ = time_after(time, options_.decay);
  given.bytes = shrink_idle();
  return given;
}

std::uint64_t ArenaSet::give_back_all() noexcept {
  const MutexLock guard(mutex_);
  turn_period();
  turn_period();
  return shrink_idle();
}

void ArenaSet::count(ReplayCounters& counters) const noexcept {
  const MutexLock guard(mutex_);
  const std::size_t size = size_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t resident = arenas_[i].load(std::memory_order_relaxed)->resident.load(std::memory_order_relaxed);
    counters.arena_bytes += resident;
    counters.arenas += resident != 0 ? 1 : 0;
  }
  counters.arenas_peak = peak_;
  counters.given_back = given_back_;
}

}  // namespace berth::internal::replay
