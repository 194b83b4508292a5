#include "berth/run/replay.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/allocator.h"
#include "run/replay_plan.h"
#include "run/replay_run.h"

namespace berth {

using namespace internal;

namespace {

using replay::kNoOffset;
using replay::kNoRequest;
using replay::LiveSlot;
using replay::PlannedRun;
using replay::ReplayPlan;

// Held for a few nanoseconds and never across a blocking call, so waiting for it is spinning. A waiter yields if the
// holder seems to have lost its core.
class BERTH_THREAD_ATTRIBUTE(capability("spin lock")) SpinLock {
 public:
  void lock() noexcept BERTH_ACQUIRE() {
    for (unsigned spins = 0; held_.exchange(true, std::memory_order_acquire); ++spins) {
      while (held_.load(std::memory_order_relaxed))
        if (++spins > 64) std::this_thread::yield();
    }
  }
  void unlock() noexcept BERTH_RELEASE() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

// One key: its recording and, once planned, its plan.
struct Entry {
  ReplayTrace trace;                 // recorded and not planned yet
  std::uint64_t recorded_in = 0;     // the run that made `trace`
  bool to_plan = false;              // `trace` is to be planned
  std::unique_ptr<ReplayPlan> plan;  // null until planned
  unsigned deviating = 0;            // consecutive deviating runs
  unsigned renewals = 0;
};

struct PooledBlock {
  Block block;
  std::uint64_t bytes;
  std::uint64_t run;     // in which it was allocated; 0: outside of a run
  std::uint32_t number;  // in the recording or log of that run
  bool beside;           // that run had a plan
};

struct Arena {
  Block block;
  std::uintptr_t base = 0;
  std::uint64_t bytes = 0;
};

// An arena that was replaced by a larger one while a part of it was live. It is freed with its last slot.
struct RetiredArena {
  Arena arena;
  std::vector<LiveSlot> live;
};

std::uintptr_t address_of(const Block& block) noexcept {
  return block.host != nullptr ? reinterpret_cast<std::uintptr_t>(block.host) : block.handle;
}

[[noreturn]] void stop_on_unknown(void* memory) noexcept {
  std::fprintf(stderr, "berth: Replay::release(%p): this memory is not live, or was not allocated here\n", memory);
  std::abort();
}

enum class Mode : std::uint8_t { kIdle, kRecording, kPlanned };

}  // namespace

class Replay::Impl {
 public:
  Impl(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options)
      : arena_memory_(std::move(arena_memory)), pool_(std::move(pool)), options_(std::move(options)) {}

  ~Impl() {
    for (auto& [address, pooled] : pooled_) pool_->release(pooled.block);
    for (RetiredArena& retired : retired_) arena_memory_->release(retired.arena.block);
    if (arena_.bytes != 0) arena_memory_->release(arena_.block);
  }

  Result<void> begin_run(std::string_view key) {
    const ScopedLock turn(turn_);
    if (depth_++ > 0) {
      const ScopedLock guard(lock_);
      overlapped_ = true;
      if (mode_ == Mode::kPlanned) run_.distrust();
      return {};
    }
    Result<void> ready;
    Entry* entry = nullptr;
    bool from_plan = false;
    try {
      ready = plan_pending();
      entry = &entries_.try_emplace(std::string(key)).first->second;
      if (entry->plan != nullptr) {
        if (Result<void> grown = grow_arena(); !grown) ready = std::move(grown);
        from_plan = arena_.bytes >= entry->plan->memory.size;
        run_reserve(*entry->plan);
      }
    } catch (const std::bad_alloc&) {
      from_plan = false;
      ready =
          Error(Code::kOutOfMemory, Layer::kPlan, "no memory for the bookkeeping of a run: it is served by the pool");
    }
    const ScopedLock guard(lock_);
    entry_ = entry;
    overlapped_ = false;
    log_lost_ = false;
    ++run_number_;
    this_run_ = {};
    this_run_.recorded = entry == nullptr || entry->plan == nullptr;
    recording_.requests.clear();
    recording_.releases.clear();
    if (from_plan) run_.begin(*entry->plan);
    mode_ = from_plan ? Mode::kPlanned : Mode::kRecording;
    return ready;
  }

  ReplayRun end_run() noexcept {
    const ScopedLock turn(turn_);
    if (depth_ == 0 || --depth_ > 0) return {};
    const ScopedLock guard(lock_);
    if (mode_ == Mode::kRecording) {
      if (entry_ != nullptr && entry_->plan == nullptr && !overlapped_ && !log_lost_) {
        entry_->trace = std::exchange(recording_, {});
        entry_->recorded_in = run_number_;
        entry_->to_plan = true;
      }
      counters_.recorded_runs += this_run_.recorded ? 1 : 0;
    } else {
      Entry& entry = *entry_;
      const bool deviated = this_run_.deviated > 0;
      run_.end();
      counters_.deviating_runs += deviated ? 1 : 0;
      entry.deviating = deviated ? entry.deviating + 1 : 0;
      const bool renew = options_.renew_after != 0 && entry.deviating >= options_.renew_after &&
                         entry.renewals < options_.max_renewals && !overlapped_;
      if (renew) {
        ReplayTrace log = run_.take_log();
        if (!log.requests.empty()) {
          entry.trace = std::move(log);
          entry.recorded_in = run_number_;
          entry.to_plan = true;
          entry.deviating = 0;
          ++entry.renewals;
          ++counters_.renewals;
          run_.adopt_log_numbers(entry.plan.get());
        }
      }
    }
    mode_ = Mode::kIdle;
    entry_ = nullptr;
    ++counters_.runs;
    counters_.requests += this_run_.requests;
    return this_run_;
  }

  void* allocate(std::uint64_t bytes, std::uint64_t alignment) noexcept {
    if (bytes == 0) return nullptr;
    // A request that is smaller than the alignment is never read in units larger than itself.
    alignment = std::max(alignment, std::min(options_.alignment, std::bit_floor(bytes)));
    std::uint32_t number = kNoRequest;
    std::uint64_t run = 0;
    bool beside = false;
    {
      const ScopedLock guard(lock_);
      if (mode_ == Mode::kPlanned) {
        ++this_run_.requests;
        const PlannedRun::Served served = run_.request(bytes, alignment);
        if (served.offset != kNoOffset) {
          ++counters_.planned;
          ++this_run_.planned;
          if (served.reordered) {
            ++counters_.reordered;
            ++this_run_.reordered;
          }
          return reinterpret_cast<void*>(arena_.base + served.offset);
        }
        if (!served.kept) {
          ++counters_.deviated;
          ++this_run_.deviated;
        }
        number = served.number;
        run = run_number_;
        beside = true;
      } else if (mode_ == Mode::kRecording) {
        ++this_run_.requests;
        run = run_number_;
        number = record(bytes, alignment);
      }
    }
    return allocate_pooled(bytes, alignment, run, number, beside);
  }

  void release(void* memory) noexcept {
    if (memory == nullptr) return;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    Block to_pool, to_arena_memory;
    bool pooled = false, retired = false;
    {
      const ScopedLock guard(lock_);
      if (address - arena_.base < arena_.bytes) {
        if (!run_.release(address - arena_.base)) stop_on_unknown(memory);
        return;
      }
      if (const auto at = pooled_.find(address); at != pooled_.end()) {
        if (at->second.run == run_number_ && at->second.number != kNoRequest) {
          if (mode_ == Mode::kPlanned) run_.release_pooled(at->second.number);
          if (mode_ == Mode::kRecording) record_release(at->second.number);
        }
        counters_.pool_bytes -= at->second.bytes;
        if (at->second.beside) beside_bytes_ -= at->second.bytes;
        to_pool = at->second.block;
        pooled = true;
        pooled_.erase(at);
      } else {
        release_retired(address, to_arena_memory, retired);
      }
    }
    if (pooled) pool_->release(to_pool);
    if (retired) arena_memory_->release(to_arena_memory);
  }

  bool owns(std::uintptr_t address) const noexcept {
    const ScopedLock guard(lock_);
    if (address - arena_.base < arena_.bytes || pooled_.count(address) != 0) return true;
    return std::any_of(retired_.begin(), retired_.end(),
                       [&](const RetiredArena& retired) { return address - retired.arena.base < retired.arena.bytes; });
  }

  std::uint64_t size_of(std::uintptr_t address) const noexcept {
    const ScopedLock guard(lock_);
    if (address - arena_.base < arena_.bytes) return run_.size_at(address - arena_.base);
    if (const auto at = pooled_.find(address); at != pooled_.end()) return at->second.bytes;
    for (const RetiredArena& retired : retired_)
      for (const LiveSlot& slot : retired.live)
        if (retired.arena.base + slot.begin == address) return slot.end - slot.begin;
    return 0;
  }

  Result<void> plan_recorded() {
    const ScopedLock turn(turn_);
    BERTH_TRY(plan_pending());
    return grow_arena();
  }

  const Entry* find(std::string_view key) const noexcept {
    const ScopedLock turn(turn_);
    const auto at = entries_.find(key);
    return at == entries_.end() ? nullptr : &at->second;
  }

  std::string save_plans(std::string_view stamp) const {
    const ScopedLock turn(turn_);
    std::vector<replay::NamedPlan> plans;
    for (const auto& [key, entry] : entries_)
      if (entry.plan) plans.emplace_back(key, entry.plan.get());
    return replay::encode_plans(plans, stamp);
  }

  Result<void> load_plans(std::string_view bytes, std::string_view stamp) {
    BERTH_TRY_ASSIGN(auto plans, replay::decode_plans(bytes, stamp));
    const ScopedLock turn(turn_);
    for (replay::DecodedPlan& decoded : plans) {
      Entry& entry = entries_[decoded.key];
      if (entry.plan == nullptr && !entry.to_plan)
        entry.plan = std::make_unique<ReplayPlan>(std::move(decoded.trace), std::move(decoded.memory));
    }
    return {};
  }

  ReplayCounters counters() const noexcept {
    const ScopedLock turn(turn_);
    const ScopedLock guard(lock_);
    ReplayCounters counters = counters_;
    counters.arena_bytes = arena_.bytes;
    for (const RetiredArena& retired : retired_) counters.arena_bytes += retired.arena.bytes;
    counters.plans = static_cast<std::uint64_t>(
        std::count_if(entries_.begin(), entries_.end(), [](const auto& e) { return e.second.plan != nullptr; }));
    return counters;
  }

 private:
  std::uint32_t record(std::uint64_t bytes, std::uint64_t alignment) noexcept BERTH_REQUIRES(lock_) {
    if (log_lost_) return kNoRequest;
    try {
      recording_.requests.push_back({.bytes = bytes, .alignment = alignment});
      return static_cast<std::uint32_t>(recording_.requests.size() - 1);
    } catch (const std::bad_alloc&) {
      log_lost_ = true;
      return kNoRequest;
    }
  }

  void record_release(std::uint32_t number) noexcept BERTH_REQUIRES(lock_) {
    if (log_lost_) return;
    try {
      recording_.releases.push_back(number);
      recording_.requests[number].released_at = static_cast<std::uint32_t>(recording_.requests.size());
    } catch (const std::bad_alloc&) {
      log_lost_ = true;
    }
  }

  void* allocate_pooled(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t run, std::uint32_t number,
                        bool beside) noexcept {
    const Result<Block> block = pool_->allocate({.bytes = bytes, .alignment = alignment});
    if (!block) return nullptr;
    const std::uintptr_t address = address_of(*block);
    try {
      const ScopedLock guard(lock_);
      pooled_.emplace(address, PooledBlock{*block, bytes, run, number, beside});
      if (beside) beside_bytes_ += bytes;
      counters_.beside_peak = std::max(counters_.beside_peak, beside_bytes_);
      counters_.pool_bytes += bytes;
      counters_.pool_peak = std::max(counters_.pool_peak, counters_.pool_bytes);
    } catch (const std::bad_alloc&) {
      pool_->release(*block);
      return nullptr;
    }
    return reinterpret_cast<void*>(address);
  }

  void release_retired(std::uintptr_t address, Block& to_arena_memory, bool& gone) noexcept BERTH_REQUIRES(lock_) {
    for (auto retired = retired_.begin(); retired != retired_.end(); ++retired) {
      const std::uint64_t offset = address - retired->arena.base;
      if (offset >= retired->arena.bytes) continue;
      const auto at = std::find_if(retired->live.begin(), retired->live.end(),
                                   [&](const LiveSlot& slot) { return slot.begin == offset; });
      if (at == retired->live.end()) break;
      retired->live.erase(at);
      if (retired->live.empty()) {
        to_arena_memory = retired->arena.block;
        gone = true;
        retired_.erase(retired);
      }
      return;
    }
    stop_on_unknown(reinterpret_cast<void*>(address));
  }

  void run_reserve(const ReplayPlan& plan) {
    const ScopedLock guard(lock_);
    run_.reserve(plan);
  }

  // Marks memory that is live between runs as kept: in recordings that are not planned yet, and in plans that hold its
  // slots.
  void mark_kept() {
    const ScopedLock guard(lock_);
    for (auto& [key, entry] : entries_) {
      if (!entry.to_plan) continue;
      for (const auto& [address, pooled] : pooled_)
        if (pooled.run == entry.recorded_in && pooled.number < entry.trace.requests.size())
          entry.trace.requests[pooled.number].kept = true;
    }
    for (const LiveSlot& slot : run_.live()) {
      for (auto& [key, entry] : entries_) {
        if (entry.plan == nullptr || entry.plan.get() != slot.plan) continue;
        if (!entry.to_plan) {
          if (entry.plan->trace.requests[slot.request].kept) continue;
          entry.trace = entry.plan->trace;
          entry.recorded_in = 0;
          entry.to_plan = true;
        }
        if (slot.request < entry.trace.requests.size()) entry.trace.requests[slot.request].kept = true;
      }
    }
  }

  // Requires: turn_ is held and no run is in progress.
  Result<void> plan_pending() {
    mark_kept();
    Result<void> first_failure;
    for (auto& [key, entry] : entries_) {
      if (!entry.to_plan) continue;
      entry.to_plan = false;
      if (Result<void> planned = plan_entry(entry); !planned && first_failure) first_failure = std::move(planned);
    }
    return first_failure;
  }

  Result<void> plan_entry(Entry& entry) {
    const PlanProblem problem = plan_problem(entry.trace);
    BERTH_TRY_ASSIGN(MemoryPlan memory,
                     options_.planner ? options_.planner(problem) : berth::plan(problem, options_.planning));
    BERTH_TRY(replay::check(entry.trace, memory));
    auto plan = std::make_unique<ReplayPlan>(std::move(entry.trace), std::move(memory));
    entry.trace = {};
    const ScopedLock guard(lock_);
    run_.replace_plan(entry.plan.get(), plan.get());
    entry.plan = std::move(plan);
    return {};
  }

  // Makes the arena large enough for every plan. Requires: turn_ is held and no run is in progress.
  Result<void> grow_arena() {
    std::uint64_t bytes = 0, alignment = options_.alignment;
    for (const auto& [key, entry] : entries_) {
      if (entry.plan == nullptr) continue;
      bytes = std::max(bytes, entry.plan->memory.size);
      for (const ReplayRequest& request : entry.plan->trace.requests)
        alignment = std::max(alignment, request.alignment);
    }
    if (bytes == 0 || (bytes <= arena_.bytes && arena_.base % alignment == 0)) return {};

    // The old arena is freed first if possible, and the pool is trimmed of what the recorded run left in it, so that
    // the new arena does not add to them at the peak of the process.
    Arena old;
    {
      const ScopedLock guard(lock_);
      old = std::exchange(arena_, {});
      if (!run_.live().empty()) retired_.push_back({std::exchange(old, {}), run_.take_live()});
    }
    if (old.bytes != 0) arena_memory_->release(old.block);
    pool_->trim();
    BERTH_TRY_ASSIGN(const Block block, arena_memory_->allocate({.bytes = bytes + options_.arena_slack,
                                                                 .alignment = alignment,
                                                                 .label = Name("replay arena")}));
    const ScopedLock guard(lock_);
    arena_ = {block, address_of(block), bytes};
    return {};
  }

  const std::shared_ptr<Allocator> arena_memory_;
  const std::shared_ptr<Allocator> pool_;
  const ReplayOptions options_;

  // turn_ serialises begin, end and planning; it guards entries_ and depth_. lock_ guards the rest. turn_ is acquired
  // first. Entries are written under both locks while a run may be in progress.
  mutable Mutex turn_;
  std::map<std::string, Entry, std::less<>> entries_;
  unsigned depth_ BERTH_GUARDED_BY(turn_) = 0;

  mutable SpinLock lock_;
  Mode mode_ BERTH_GUARDED_BY(lock_) = Mode::kIdle;
  bool overlapped_ BERTH_GUARDED_BY(lock_) = false;
  bool log_lost_ BERTH_GUARDED_BY(lock_) = false;
  Entry* entry_ = nullptr;
  std::uint64_t run_number_ = 0;
  ReplayRun this_run_ BERTH_GUARDED_BY(lock_);
  PlannedRun run_ BERTH_GUARDED_BY(lock_);
  ReplayTrace recording_ BERTH_GUARDED_BY(lock_);
  Arena arena_;
  std::vector<RetiredArena> retired_ BERTH_GUARDED_BY(lock_);
  std::unordered_map<std::uintptr_t, PooledBlock> pooled_ BERTH_GUARDED_BY(lock_);
  ReplayCounters counters_ BERTH_GUARDED_BY(lock_);
  std::uint64_t beside_bytes_ BERTH_GUARDED_BY(lock_) = 0;
};

Replay::Replay(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options)
    : impl_(std::make_unique<Impl>(std::move(arena_memory), std::move(pool), std::move(options))) {}
Replay::~Replay() = default;

Result<void> Replay::begin_run(std::string_view key) {
  return impl_->begin_run(key);
}
ReplayRun Replay::end_run() noexcept {
  return impl_->end_run();
}
void* Replay::allocate(std::size_t bytes, std::size_t alignment) noexcept {
  return impl_->allocate(bytes, alignment);
}
void Replay::release(void* memory) noexcept {
  impl_->release(memory);
}
bool Replay::owns(const void* memory) const noexcept {
  return impl_->owns(reinterpret_cast<std::uintptr_t>(memory));
}
std::size_t Replay::size_of(const void* memory) const noexcept {
  return impl_->size_of(reinterpret_cast<std::uintptr_t>(memory));
}
Result<void> Replay::plan_recorded() {
  return impl_->plan_recorded();
}
const ReplayTrace* Replay::trace(std::string_view key) const noexcept {
  const Entry* entry = impl_->find(key);
  if (entry == nullptr) return nullptr;
  if (entry->plan) return &entry->plan->trace;
  return entry->to_plan ? &entry->trace : nullptr;
}
const MemoryPlan* Replay::plan(std::string_view key) const noexcept {
  const Entry* entry = impl_->find(key);
  return entry != nullptr && entry->plan ? &entry->plan->memory : nullptr;
}
std::string Replay::save_plans(std::string_view stamp) const {
  return impl_->save_plans(stamp);
}
Result<void> Replay::load_plans(std::string_view bytes, std::string_view stamp) {
  return impl_->load_plans(bytes, stamp);
}
ReplayCounters Replay::counters() const noexcept {
  return impl_->counters();
}

}  // namespace berth
