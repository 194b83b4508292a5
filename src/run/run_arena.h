// The arenas of a Replay: the memory that runs follow their plans in, one arena for each run that is in progress. An
// ArenaSet hands idle arenas to runs, makes their memory fit, finds the arena of an address, and gives back what recent
// runs did not need. Any thread may call. The set must outlive all memory that is live in it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "berth/base/mutex.h"
#include "berth/memory/allocator.h"
#include "berth/run/replay.h"
#include "run/replay_run.h"
#include "run/spin_lock.h"

namespace berth::internal::replay {

struct KnownShape;

enum class Mode : std::uint8_t {
  kIdle,
  kRecording,  // the pool serves the run, and its events are written down
  kPooled,     // the pool serves the run
  kPlanned,
};

// The state of one run, and the memory it follows its plan in; a run that is served by the pool has none. Used for one
// run after the other, and destroyed with the Replay.
struct RunArena {
  mutable SpinLock lock;
  Mode mode BERTH_GUARDED_BY(lock) = Mode::kIdle;
  std::atomic<std::uint64_t> generation{0};      // of the run: changes when it begins and ends. Written under `lock`
  bool joined BERTH_GUARDED_BY(lock) = false;    // another run began inside it
  bool log_lost BERTH_GUARDED_BY(lock) = false;  // there was no memory to write down an event
  bool retired BERTH_GUARDED_BY(lock) = false;   // outgrown while live: freed with its last slot
  std::uint64_t run_trace BERTH_GUARDED_BY(lock) = 0;  // the trace id of what this run does
  ReplayRun did BERTH_GUARDED_BY(lock);
  ReplayTrace recording BERTH_GUARDED_BY(lock);
  std::shared_ptr<const ReplayPlan> plan BERTH_GUARDED_BY(lock);
  std::shared_ptr<KnownShape> shape BERTH_GUARDED_BY(lock);
  bool records BERTH_GUARDED_BY(lock) = false;                   // other runs may wait for its recording
  std::uint64_t unattributed_before BERTH_GUARDED_BY(lock) = 0;  // requests without a run, when it began
  PlannedRun follow BERTH_GUARDED_BY(lock);

  // Written by the run that has the arena, under `lock`; read without it by threads that look for an address, and again
  // with it by those that found one.
  std::atomic<std::uintptr_t> base{0};
  std::atomic<std::uint64_t> bytes{0};  // of the block

  // Of the run that has the arena, or of the set.
  Block block;
  std::atomic<std::uint64_t> resident{0};  // bytes from the start that are faulted in, or all of the block

  // Of the set.
  bool in_use = false;
  std::uint64_t last_use = 0;     // when its last run ended, in runs
  std::uint64_t need = 0;         // of the run that has it
  std::uint64_t need_now = 0;     // the largest need in this period of the decay
  std::uint64_t need_before = 0;  // and in the one before

  bool contains(std::uintptr_t address) const noexcept {
    return address - base.load(std::memory_order_relaxed) < bytes.load(std::memory_order_relaxed);
  }
};

class ArenaSet {
 public:
  ArenaSet(AllocatorPtr memory, const ReplayOptions& options)
      : memory_(std::move(memory)), options_(options), cap_(cap(options.max_arenas)) {}
  ~ArenaSet();
  ArenaSet(const ArenaSet&) = delete;
  ArenaSet& operator=(const ArenaSet&) = delete;

  // An arena for one run, until release(): an idle one that is large enough, an idle one, or a new one. Null if the set
  // is full and no arena became free until `deadline`. Sets `waited`. May throw std::bad_alloc.
  RunArena* acquire(std::uint64_t need, std::chrono::steady_clock::time_point deadline, bool& waited);
  // Makes the memory of an acquired arena at least as large as `need` and its run's slots usable. The arena is
  // exchanged for another if its memory is live and too small. kOutOfMemory; the arena is then still acquired, with
  // less memory.
  Result<void> fit(RunArena*& arena, std::uint64_t need, std::uint64_t alignment);
  // The run is over. Call give_back() then.
  void release(RunArena& arena) noexcept;

  // The arena that an address is in; null if it is in none. O(arenas).
  RunArena* find(std::uintptr_t address) const noexcept;
  // Frees the memory of a retired arena without live slots.
  void reclaim(RunArena& arena) noexcept;

  struct GivenBack {
    std::uint64_t bytes = 0;
    unsigned periods = 0;  // of the decay that have ended since the last call, at most 2
  };
  // Gives back what no run needed lately, if it is time; `latest` is the arena of a run that just ended. O(1) if not.
  GivenBack give_back(const RunArena* latest = nullptr) noexcept;
  // The same for all that is not in use.
  std::uint64_t give_back_all() noexcept;

  // Calls `visit` with each arena. Not for hot paths.
  template <class Visit>
  void for_each(Visit&& visit) const {
    const std::size_t size = size_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < size; ++i) visit(std::as_const(*arenas_[i].load(std::memory_order_relaxed)));
  }
  void count(ReplayCounters& counters) const noexcept;
  // How many runs wait for an arena.
  std::size_t waiting() const noexcept {
    const MutexLock guard(mutex_);
    return waiting_.size();
  }

 private:
  std::chrono::steady_clock::time_point now() const {
    return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
  }
  // A run that waits for an arena. An arena that becomes free is given to the first, so that it wakes no others and
  // cannot be taken by the run that comes next on the same thread.
  struct Waiter {
    std::uint64_t need;
    RunArena* given = nullptr;
    CondVar woken{};
  };
  static unsigned cap(unsigned max_arenas) noexcept;
  RunArena* choose(std::uint64_t need) BERTH_REQUIRES(mutex_);
  RunArena* take(RunArena* arena, std::uint64_t need) noexcept BERTH_REQUIRES(mutex_);
  void serve_waiting() noexcept BERTH_REQUIRES(mutex_);
  RunArena* add() BERTH_REQUIRES(mutex_);
  void turn_period() noexcept BERTH_REQUIRES(mutex_);
  std::uint64_t shrink(RunArena& arena, std::uint64_t keep) noexcept BERTH_REQUIRES(mutex_);
  std::uint64_t shrink_idle() noexcept BERTH_REQUIRES(mutex_);
  void drop_memory(RunArena& arena) noexcept;
  bool has_pages() const noexcept { return static_cast<bool>(options_.pages.give_back); }

  const AllocatorPtr memory_;
  const ReplayOptions& options_;
  const unsigned cap_;

  mutable Mutex mutex_;
  std::deque<Waiter*> waiting_ BERTH_GUARDED_BY(mutex_);  // in the order in which they came
  std::array<std::atomic<RunArena*>, ReplayOptions::kMaxArenas> arenas_{};
  std::atomic<std::size_t> size_{0};
  unsigned in_use_ BERTH_GUARDED_BY(mutex_) = 0;
  unsigned peak_ BERTH_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ BERTH_GUARDED_BY(mutex_) = 0;
  std::uint64_t given_back_ BERTH_GUARDED_BY(mutex_) = 0;
  bool period_set_ BERTH_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point period_end_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal::replay
