#include "berth/run/replay.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/allocator.h"
#include "run/known_runs.h"
#include "run/pooled_blocks.h"
#include "run/replay_plan.h"
#include "run/run_arena.h"
#include "run/spin_lock.h"
#include "run/time_after.h"

namespace berth {

using namespace internal;

namespace {

using replay::ArenaSet;
using replay::kNoOffset;
using replay::kNoRequest;
using replay::KnownRuns;
using replay::LiveRequest;
using replay::LiveSlot;
using replay::Mode;
using replay::PlannedRun;
using replay::PooledBlocks;
using replay::PooledFor;
using replay::ReplayPlan;
using replay::RunArena;
using replay::ShapeModel;
using replay::ShapePtr;

[[noreturn]] void stop_on_unknown(void* memory) noexcept {
  std::fprintf(stderr, "berth: Replay::release(%p): this memory is not live, or was not allocated here\n", memory);
  std::abort();
}

// The runs that a thread has begun, one for each Replay. An entry is valid while its run has the generation it had when
// it was written: the run may have been ended by another thread, and the Replay may be gone.
struct BoundRun {
  std::uint64_t replay = 0;  // Impl::id_; 0: none
  RunArena* run = nullptr;
  std::uint64_t generation = 0;
  unsigned depth = 0;
};
constexpr std::size_t kMaxBound = 4;
thread_local std::array<BoundRun, kMaxBound> bound_runs;

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

class Replay::Impl {
 public:
  Impl(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options)
      : options_(std::move(options)),
        arenas_(std::move(arena_memory), options_),
        pooled_(std::move(pool)),
        known_(options_) {}

  Result<void> begin_run(std::string_view key, Dimensions dimensions) {
    if (BoundRun* bound = find_bound()) {
      const ScopedLock guard(bound->run->lock);
      ++bound->depth;
      bound->run->joined = true;
      if (bound->run->mode == Mode::kPlanned) bound->run->follow.distrust();
      return {};
    }
    Result<void> ready;
    Chosen chosen;
    RunArena* run = nullptr;
    try {
      const auto deadline = replay::time_after(std::chrono::steady_clock::now(), options_.max_wait);
      bool waited = false;
      ready = choose(key, dimensions, deadline, chosen, waited);
      if (chosen.plan != nullptr) run = take_arena(chosen, deadline, ready, waited);
      if (run == nullptr) run = take_recorder();
      if (waited) {
        const ScopedLock guard(counters_lock_);
        ++counters_.waits;
      }
    } catch (const std::bad_alloc&) {
      ready =
          Error(Code::kOutOfMemory, Layer::kPlan, "no memory for the bookkeeping of a run: it is served by the pool");
    }
    if (run == nullptr) {
      stop_recording(chosen);
      return ready;  // not even a place to count its requests: they are served as outside of a run
    }
    start(*run, std::move(chosen));
    return ready;
  }

  ReplayRun end_run(bool failed) noexcept {
    BoundRun* bound = find_bound();
    if (bound != nullptr && bound->depth > 1) {
      --bound->depth;
      return {};
    }
    RunArena* run = bound != nullptr ? bound->run : sole_.load(std::memory_order_acquire);
    if (run == nullptr) return {};
    if (bound != nullptr) *bound = {};
    return finish(*run, failed);
  }

  void* allocate(std::uint64_t bytes, std::uint64_t alignment) noexcept {
    if (bytes == 0) return nullptr;
    // A request that is smaller than the alignment is never read in units larger than itself.
    alignment = std::max(alignment, std::min(options_.alignment, std::bit_floor(bytes)));
    PooledFor owner;
    if (RunArena* run = run_of_thread()) {
      const ScopedLock guard(run->lock);
      if (run->mode != Mode::kIdle) ++run->did.requests;
      if (run->mode == Mode::kPlanned) {
        const PlannedRun::Served served = run->follow.request(bytes, alignment);
        if (served.offset != kNoOffset) {
          ++run->did.planned;
          run->did.reordered += served.reordered ? 1 : 0;
          return reinterpret_cast<void*>(run->base.load(std::memory_order_relaxed) + served.offset);
        }
        run->did.deviated += served.kept ? 0 : 1;
        owner = {run, run->generation.load(std::memory_order_relaxed), run->run_trace, served.number, true};
      } else if (run->mode == Mode::kRecording) {
        owner = {run, run->generation.load(std::memory_order_relaxed), run->run_trace, record(*run, bytes, alignment),
                 false};
      }
    }
    return pooled_.allocate(bytes, alignment, owner);
  }

  void release(void* memory) noexcept {
    if (memory == nullptr) return;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    if (const BoundRun* bound = find_bound(); bound != nullptr && bound->run->contains(address)) {
      if (release_in(*bound->run, address)) return;
    }
    while (RunArena* arena = arenas_.find(address))
      if (release_in(*arena, address)) return;
    const std::optional<PooledFor> owner = pooled_.release(address);
    if (!owner) stop_on_unknown(memory);
    if (owner->run == nullptr || owner->number == kNoRequest) return;
    const ScopedLock guard(owner->run->lock);
    if (owner->run->generation != owner->generation) return;
    if (owner->run->mode == Mode::kPlanned) owner->run->follow.release_pooled(owner->number);
    if (owner->run->mode == Mode::kRecording) record_release(*owner->run, owner->number);
  }

  bool owns(std::uintptr_t address) const noexcept {
    return arenas_.find(address) != nullptr || pooled_.size_of(address) != 0;
  }

  std::uint64_t size_of(std::uintptr_t address) const noexcept {
    if (const RunArena* arena = arenas_.find(address)) {
      const ScopedLock guard(arena->lock);
      return arena->follow.size_at(address - arena->base.load(std::memory_order_relaxed));
    }
    return pooled_.size_of(address);
  }

  Result<void> plan_recorded() {
    std::uint64_t bytes = 0, alignment = 0;
    {
      const MutexLock turn(turn_);
      BERTH_TRY(plan_pending());
      std::tie(bytes, alignment) = known_.largest();
    }
    if (bytes == 0) return {};
    bool waited = false;
    RunArena* arena = arenas_.acquire(bytes, std::chrono::steady_clock::now(), waited);
    if (arena == nullptr) return {};  // all are in use, and will be made to fit when they are taken
    Result<void> fits = arenas_.fit(arena, bytes, alignment);
    arenas_.release(*arena);
    static_cast<void>(give_back_due(arena));
    return fits;
  }

  template <class T>
  std::shared_ptr<const T> look_up(std::string_view key, Dimensions dimensions) const {
    const MutexLock turn(turn_);
    const replay::KnownShape* shape = known_.look_up(key, dimensions);
    if (shape == nullptr) return nullptr;
    if (shape->plan != nullptr) {
      if constexpr (std::is_same_v<T, ReplayTrace>) return {shape->plan, &shape->plan->trace};
      if constexpr (std::is_same_v<T, MemoryPlan>) return {shape->plan, &shape->plan->memory};
    }
    if constexpr (std::is_same_v<T, ReplayTrace>)
      if (shape->to_plan) return std::make_shared<const ReplayTrace>(shape->trace);
    return nullptr;
  }

  void forget(std::string_view key) noexcept {
    const MutexLock turn(turn_);
    known_.forget(key);
  }

  std::uint64_t give_back(bool now) noexcept {
    return now ? arenas_.give_back_all() + pooled_.give_back_all() : give_back_due();
  }

  std::string save_plans(std::string_view stamp) const {
    const MutexLock turn(turn_);
    return replay::encode_plans(known_.observed_plans(), stamp);
  }

  Result<void> load_plans(std::string_view bytes, std::string_view stamp) {
    BERTH_TRY_ASSIGN(auto plans, replay::decode_plans(bytes, stamp));
    const MutexLock turn(turn_);
    for (replay::DecodedPlan& decoded : plans) known_.load(std::move(decoded));
    return {};
  }

  ReplayCounters counters() const noexcept {
    const MutexLock turn(turn_);
    ReplayCounters counters;
    {
      const ScopedLock guard(counters_lock_);
      counters = counters_;
    }
    counters.unattributed = unattributed_.load(std::memory_order_relaxed);
    known_.count(counters);
    arenas_.count(counters);
    pooled_.count(counters);
    const MutexLock guard(runs_mutex_);
    for (const RunArena* run : runs_) {
      const ScopedLock lock(run->lock);
      add(counters, run->did);
    }
    return counters;
  }

 private:
  // What begin_run() decided.
  struct Chosen {
    ShapePtr shape;
    std::shared_ptr<const ReplayPlan> plan;  // null: no plan
    bool records = false;                    // in recordings_
  };

  // The run in progress that a request of this thread belongs to.
  RunArena* run_of_thread() noexcept {
    if (const BoundRun* bound = find_bound()) return bound->run;
    RunArena* run = sole_.load(std::memory_order_acquire);
    if (run == nullptr && in_progress_.load(std::memory_order_relaxed) != 0)
      unattributed_.fetch_add(1, std::memory_order_relaxed);
    return run;
  }

  BoundRun* find_bound() const noexcept {
    for (BoundRun& bound : bound_runs) {
      if (bound.replay != id_) continue;
      if (bound.run->generation.load(std::memory_order_relaxed) == bound.generation) return &bound;
      bound = {};
    }
    return nullptr;
  }

  std::uint32_t record(RunArena& run, std::uint64_t bytes, std::uint64_t alignment) noexcept BERTH_REQUIRES(run.lock) {
    if (run.log_lost) return kNoRequest;
    try {
      run.recording.requests.push_back({.bytes = bytes, .alignment = alignment});
      return static_cast<std::uint32_t>(run.recording.requests.size() - 1);
    } catch (const std::bad_alloc&) {
      run.log_lost = true;
      return kNoRequest;
    }
  }

  void record_release(RunArena& run, std::uint32_t number) noexcept BERTH_REQUIRES(run.lock) {
    if (run.log_lost) return;
    try {
      run.recording.releases.push_back(number);
      run.recording.requests[number].released_at = static_cast<std::uint32_t>(run.recording.requests.size());
    } catch (const std::bad_alloc&) {
      run.log_lost = true;
    }
  }

  // False if the address is not in this arena after all.
  bool release_in(RunArena& arena, std::uintptr_t address) noexcept {
    bool reclaim = false;
    {
      const ScopedLock guard(arena.lock);
      if (!arena.contains(address)) return false;
      const std::uint64_t offset = address - arena.base.load(std::memory_order_relaxed);
      if (!arena.follow.release(offset)) stop_on_unknown(reinterpret_cast<void*>(address));
      reclaim = arena.retired && arena.follow.live().empty();
    }
    if (reclaim) arenas_.reclaim(arena);
    return true;
  }

  Result<void> plan_pending() BERTH_REQUIRES(turn_) {
    if (!known_.pending()) return {};
    // What is live between runs is kept: in the pool what a recorded run left, in the arenas what a renewed one did.
    std::vector<LiveRequest> live;
    pooled_.for_each([&](const PooledFor& owner) {
      if (owner.trace != 0 && owner.number != kNoRequest) live.emplace_back(owner.trace, owner.number);
    });
    arenas_.for_each([&](const RunArena& arena) {
      const ScopedLock guard(arena.lock);
      for (const LiveSlot& slot : arena.follow.live()) live.emplace_back(slot.trace, slot.request);
    });
    Result<void> planned = known_.plan_pending(live);
    // What recorded runs left in the pool goes before an arena is taken, so that the two do not add up at the peak of
    // the process.
    pooled_.trim();
    return planned;
  }

  // Finds or makes the plan of a run, or decides that it is recorded or served by the pool. Waits for a recording that
  // may make one of its own unnecessary.
  Result<void> choose(std::string_view key, Dimensions dimensions, std::chrono::steady_clock::time_point deadline,
                      Chosen& chosen, bool& waited) {
    const MutexLock turn(turn_);
    Result<void> ready;
    for (;;) {
      if (Result<void> planned = plan_pending(); !planned && ready) ready = std::move(planned);
      chosen.shape = known_.find(key, dimensions);
      if (Result<void> prepared = known_.prepare(chosen.shape); !prepared && ready) ready = std::move(prepared);
      chosen.plan = chosen.shape->plan;
      if (chosen.plan != nullptr) return ready;
      if (!worth_waiting(*chosen.shape)) {
        recordings_.push_back(chosen.shape);
        chosen.records = true;
        return ready;
      }
      waited = true;
      if (!recorded_.wait_until(turn_, deadline) && std::chrono::steady_clock::now() >= deadline) return ready;
    }
  }

  // True if a run is recorded that has the same dimensions, or from which these dimensions may be learned.
  bool worth_waiting(const replay::KnownShape& shape) const BERTH_REQUIRES(turn_) {
    const std::shared_ptr<replay::KnownKey> key = shape.key.lock();
    return std::any_of(recordings_.begin(), recordings_.end(), [&](const ShapePtr& other) {
      if (other->key.lock() != key) return false;
      if (other->dimensions == shape.dimensions) return true;
      return !shape.dimensions.empty() && options_.max_recordings > 0 &&
             key->model.recordings() < ShapeModel::kSureAfter;
    });
  }

  void stop_recording(const Chosen& chosen) noexcept {
    if (!chosen.records) return;
    {
      const MutexLock turn(turn_);
      const auto at = std::find(recordings_.begin(), recordings_.end(), chosen.shape);
      if (at != recordings_.end()) recordings_.erase(at);
    }
    recorded_.notify_all();
  }

  // An arena for the plan, ready for use; null if the pool must serve the run.
  RunArena* take_arena(Chosen& chosen, std::chrono::steady_clock::time_point deadline, Result<void>& ready,
                       bool& waited) {
    RunArena* arena = arenas_.acquire(chosen.plan->memory.size, deadline, waited);
    if (arena == nullptr) return nullptr;
    try {
      std::vector<LiveRequest> live;
      {
        const ScopedLock guard(arena->lock);
        for (const LiveSlot& slot : arena->follow.live()) live.emplace_back(slot.trace, slot.request);
      }
      if (!live.empty()) {
        // Somebody keeps what is planned in the arena: such requests are left to the pool from now on.
        const MutexLock turn(turn_);
        known_.keep(live);
        if (Result<void> planned = plan_pending(); !planned && ready) ready = std::move(planned);
        if (Result<void> prepared = known_.prepare(chosen.shape); !prepared && ready) ready = std::move(prepared);
        if (chosen.shape->plan != nullptr) chosen.plan = chosen.shape->plan;
      }
      Result<void> fits =
          arenas_.fit(arena, chosen.plan->memory.size, std::max(chosen.plan->alignment, options_.alignment));
      if (fits) {
        const ScopedLock guard(arena->lock);
        arena->follow.reserve(*chosen.plan);
        return arena;
      }
      if (ready) ready = std::move(fits);
    } catch (const std::bad_alloc&) {
      if (ready)
        ready =
            Error(Code::kOutOfMemory, Layer::kPlan, "no memory for the bookkeeping of a run: it is served by the pool");
    }
    arenas_.release(*arena);
    return nullptr;
  }

  RunArena* take_recorder() {
    const MutexLock guard(runs_mutex_);
    if (idle_recorders_.empty()) {
      recorders_.reserve(recorders_.size() + 1);
      idle_recorders_.reserve(recorders_.size() + 1);
      recorders_.push_back(std::make_unique<RunArena>());
      return recorders_.back().get();
    }
    RunArena* recorder = idle_recorders_.back();
    idle_recorders_.pop_back();
    return recorder;
  }

  void start(RunArena& run, Chosen chosen) noexcept {
    std::uint64_t generation = 0;
    const std::uint64_t unattributed = unattributed_.load(std::memory_order_relaxed);
    const bool planned = run.in_use;  // an arena of the set, not a recorder
    {
      const ScopedLock guard(run.lock);
      generation = ++run.generation;
      run.joined = run.log_lost = false;
      run.run_trace = trace_numbers_.fetch_add(2, std::memory_order_relaxed);
      run.did = {};
      run.did.recorded = chosen.plan == nullptr;
      run.did.predicted = planned && chosen.plan->predicted;
      run.recording.requests.clear();
      run.recording.releases.clear();
      run.mode = planned ? Mode::kPlanned : chosen.records ? Mode::kRecording : Mode::kPooled;
      run.plan = chosen.plan;
      run.shape = chosen.shape;
      run.records = chosen.records;
      run.unattributed_before = unattributed;
      if (planned) run.follow.begin(*chosen.plan);
    }
    // Without room, the requests of the run are found while it is the only one in progress.
    const auto free_place =
        std::find_if(bound_runs.begin(), bound_runs.end(), [](const BoundRun& bound) { return bound.replay == 0; });
    if (free_place != bound_runs.end()) *free_place = {id_, &run, generation, 1};
    const MutexLock guard(runs_mutex_);
    try {
      runs_.push_back(&run);
    } catch (const std::bad_alloc&) {
      // Only counters() and requests of other threads miss it.
    }
    update_sole();
  }

  void update_sole() noexcept BERTH_REQUIRES(runs_mutex_) {
    sole_.store(runs_.size() == 1 ? runs_.front() : nullptr, std::memory_order_release);
    in_progress_.store(runs_.size(), std::memory_order_relaxed);
  }

  ReplayRun finish(RunArena& run, bool failed) noexcept {
    ReplayRun did;
    ReplayTrace trace;
    ShapePtr shape;
    Mode mode = Mode::kIdle;
    bool records = false, observe = false, learn = false;
    std::uint64_t trace_id = 0;
    {
      const ScopedLock guard(run.lock);
      mode = std::exchange(run.mode, Mode::kIdle);
      if (mode == Mode::kIdle) return {};
      ++run.generation;
      did = run.did;
      shape = std::move(run.shape);
      records = std::exchange(run.records, false);
      trace_id = run.run_trace;
      const bool alone =
          !failed && !run.joined && run.unattributed_before == unattributed_.load(std::memory_order_relaxed);
      if (mode == Mode::kRecording) {
        observe = alone && !run.log_lost;
        if (observe) trace = std::exchange(run.recording, {});
      } else if (mode == Mode::kPlanned) {
        const bool news = run.follow.was_smaller() && !shape->expects_smaller;
        run.follow.end(news);
        observe = alone && did.deviated > 0 && renew(*shape, run.plan->predicted);
        if (observe) {
          trace = run.follow.take_log();
          observe = !trace.requests.empty();
        }
        if (observe) run.follow.adopt_log_numbers(trace_id);
        learn = alone && did.deviated == 0 && news;
        if (learn) trace = run.follow.take_log();
      }
      run.plan = nullptr;
    }
    if (did.deviated == 0 && shape != nullptr) shape->deviating.store(0, std::memory_order_relaxed);
    {
      const MutexLock guard(runs_mutex_);
      std::erase(runs_, &run);
      update_sole();
      const ScopedLock lock(counters_lock_);
      add(counters_, did);
      ++counters_.runs;
      counters_.recorded_runs += did.recorded ? 1 : 0;
      counters_.predicted_runs += did.predicted ? 1 : 0;
      counters_.deviating_runs += did.deviated > 0 ? 1 : 0;
      counters_.pooled_runs += mode == Mode::kPooled ? 1 : 0;
      counters_.renewals += observe && mode == Mode::kPlanned ? 1 : 0;
      if (mode != Mode::kPlanned) idle_recorders_.push_back(&run);  // take_recorder() made room
    }
    if (mode == Mode::kPlanned) arenas_.release(run);
    static_cast<void>(give_back_due(&run));
    if (observe || learn) {
      const MutexLock turn(turn_);
      try {
        if (observe)
          known_.observed(shape, std::move(trace), trace_id);
        else if (!trace.requests.empty())
          known_.learned(shape, trace);
      } catch (const std::bad_alloc&) {
        // It is recorded again.
      }
    }
    if (records) stop_recording({shape, nullptr, true});
    return did;
  }

  // What recent runs did not need, if it is time; `latest` just ended.
  std::uint64_t give_back_due(const RunArena* latest = nullptr) noexcept {
    const ArenaSet::GivenBack given = arenas_.give_back(latest);
    return given.bytes + pooled_.give_back(given.periods);
  }

  // A run with this plan deviated: whether its plan is to be made anew from what it did.
  bool renew(replay::KnownShape& shape, bool predicted) const noexcept {
    const unsigned deviating = shape.deviating.fetch_add(1, std::memory_order_relaxed) + 1;
    // A prediction that was wrong is corrected at once.
    const unsigned after = predicted ? 1 : options_.renew_after;
    if (options_.renew_after == 0 || deviating < after) return false;
    if (shape.renewals.load(std::memory_order_relaxed) >= options_.max_renewals) return false;
    shape.renewals.fetch_add(1, std::memory_order_relaxed);
    shape.deviating.store(0, std::memory_order_relaxed);
    return true;
  }

  static void add(ReplayCounters& counters, const ReplayRun& did) noexcept {
    counters.requests += did.requests;
    counters.planned += did.planned;
    counters.reordered += did.reordered;
    counters.deviated += did.deviated;
  }

  const std::uint64_t id_ = next_id();
  const ReplayOptions options_;
  ArenaSet arenas_;
  PooledBlocks pooled_;

  // Serialises choosing and planning. Acquired before all other locks here.
  mutable Mutex turn_;
  CondVar recorded_;
  KnownRuns known_ BERTH_GUARDED_BY(turn_);
  std::vector<ShapePtr> recordings_ BERTH_GUARDED_BY(turn_);  // in progress

  mutable Mutex runs_mutex_;
  std::vector<RunArena*> runs_ BERTH_GUARDED_BY(runs_mutex_);  // in progress
  std::vector<std::unique_ptr<RunArena>> recorders_ BERTH_GUARDED_BY(runs_mutex_);
  std::vector<RunArena*> idle_recorders_ BERTH_GUARDED_BY(runs_mutex_);
  std::atomic<RunArena*> sole_{nullptr};  // the run in progress if there is exactly one
  std::atomic<std::size_t> in_progress_{0};
  std::atomic<std::uint64_t> unattributed_{0};
  std::atomic<std::uint64_t> trace_numbers_{1};  // odd: those of known_ are even

  mutable SpinLock counters_lock_;
  ReplayCounters counters_ BERTH_GUARDED_BY(counters_lock_);
};

Replay::Replay(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options)
    : impl_(std::make_unique<Impl>(std::move(arena_memory), std::move(pool), std::move(options))) {}
Replay::~Replay() = default;

Result<void> Replay::begin_run(std::string_view key, Dimensions dimensions) {
  return impl_->begin_run(key, dimensions);
}
ReplayRun Replay::end_run(bool failed) noexcept {
  return impl_->end_run(failed);
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
std::shared_ptr<const ReplayTrace> Replay::trace(std::string_view key, Dimensions dimensions) const {
  return impl_->look_up<ReplayTrace>(key, dimensions);
}
std::shared_ptr<const MemoryPlan> Replay::plan(std::string_view key, Dimensions dimensions) const {
  return impl_->look_up<MemoryPlan>(key, dimensions);
}
void Replay::forget(std::string_view key) noexcept {
  impl_->forget(key);
}
std::uint64_t Replay::give_back(bool now) noexcept {
  return impl_->give_back(now);
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
