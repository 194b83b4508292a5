// Record, plan, replay: memory for an engine that makes the same requests in every run. A Replay is called from the
// allocator hook of the engine. It records the first run, in which every request gets separate memory. Later runs are
// served from an arena whose layout was planned in advance, and a request costs one comparison.
//
// Runs may overlap. Each takes an arena of its own from a set that all keys share, so N runs at a time hold N plans.
// The set can be capped; a run that finds no arena then waits or is served by the pool. Only one run records at a time:
// another that would have to record waits for it, because what it is about to record may be known by then. Runs that
// follow their plans share no lock.
//
// A key can be given with dimensions, such as the shapes of a model's inputs. From a few recordings the Replay then
// learns each request's bytes as an exact function of the dimensions, and lays out a shape it has never seen before its
// first run. A prediction is checked like a recording: one that is wrong costs a deviation, never wrong bytes.
//
// The engine is not trusted to repeat itself. A request that does not match the plan is looked up among the planned
// requests of the same size (threads may change the order); if none is free, a pool serves it, and it is counted.
// Memory that is live is never returned again, whatever the engine does: while a run follows its plan event by event,
// the plan guarantees this, and from the first difference on, every slot is checked against the live ones. After
// several deviating runs in a row, the plan is renewed from what was observed. Memory that is still live when the arena
// is taken again (an output that the user keeps) is left out of the arena by the next plan.
//
// What recent runs did not need of the arenas and of the pool is given back after a decay, without a new mapping where
// the memory can do that.
//
// allocate() and release() may be called from any thread at any time. A run belongs to the thread that began it, and
// its requests are those of that thread. A request of another thread belongs to the run in progress if there is exactly
// one; if there are several, nobody can tell, and the pool serves it. A run that begins inside another on the same
// thread joins it and is served with all checks enabled. A Replay must outlive all memory it returned.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

class Allocator;
struct Block;

// One request of a recorded run. Positions count the requests of the run: request i is made at position i, and a
// request that is released after request j and before request j + 1 lives [i, j + 1).
struct ReplayRequest {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
  std::uint32_t released_at = kNeverReleased;  // position; kNeverReleased: live at the end of the run
  bool kept = false;                           // was live when a later run began: stays out of the arena

  static constexpr std::uint32_t kNeverReleased = 0xffff'ffff;
  friend bool operator==(const ReplayRequest&, const ReplayRequest&) = default;
};

// A recorded run. `releases` has one entry per release, in the order of the releases.
struct ReplayTrace {
  std::vector<ReplayRequest> requests;
  std::vector<std::uint32_t> releases;  // request numbers

  // The largest sum of requested bytes live at once. No allocator can use less.
  std::uint64_t live_peak() const noexcept;
  friend bool operator==(const ReplayTrace&, const ReplayTrace&) = default;
};

// The planning problem of a recorded run: one lifetime per request, with its size rounded up to its alignment if that
// is at least a cache line. Kept requests have zero bytes and therefore no slot.
PlanProblem plan_problem(const ReplayTrace& trace);

// What a run does that finds every arena of a capped set in use.
enum class WhenFull : std::uint8_t {
  kWait,  // begin_run() waits until a run ends
  kPool,  // the run is served by the pool
};

// How the physical memory of an arena comes and goes under a block that stays. Both are called for a part of a block of
// the arena's memory, on the thread that begins or ends a run; the bytes given back are not read again before they are
// written. Without them an arena that is too large is released and allocated anew.
struct ArenaPages {
  std::function<void(const Block&, std::uint64_t offset, std::uint64_t bytes)> fault_in = nullptr;
  std::function<void(const Block&, std::uint64_t offset, std::uint64_t bytes)> give_back = nullptr;
};

struct ReplayOptions {
  // Minimum alignment of every request, a power of two. A smaller request needs only the largest alignment that its
  // size holds.
  std::uint64_t alignment = 64;
  unsigned renew_after = 3;       // number of consecutive deviating runs after which the plan is renewed; 0: never
  unsigned max_renewals = 8;      // per plan; after that, the pool serves an engine that never repeats itself
  std::uint64_t arena_slack = 0;  // bytes after the last slot, for engines that read past the end of their requests
  PlanOptions planning = {};
  // The planner. Null: berth::plan. Every plan is checked by berth::validate before it is used.
  std::function<Result<MemoryPlan>(const PlanProblem&)> planner = nullptr;

  // The most arenas, which is the most runs that follow plans at once. 0: as many as runs overlap, up to kMaxArenas.
  // kOnePerProcessor: as many as there are processors that the process may use. More runs than that compute nothing
  // sooner on them, and each would have an arena of its own.
  unsigned max_arenas = 0;
  WhenFull when_full = WhenFull::kWait;
  // The longest time that begin_run() waits, for an arena while no run ends, or for the end of another run's recording.
  // The run is then served by the pool, so that runs which depend on each other cannot wait for ever.
  std::chrono::milliseconds max_wait{10'000};

  // Recordings of one key with dimensions from which its requests are learned. A key whose requests are no function of
  // its dimensions that could be found is recorded for each shape, and counted. 0: nothing is learned.
  unsigned max_recordings = 12;
  // Bounds on the plans that are kept, over all keys. The one whose last use is longest ago goes first.
  std::size_t max_plans = 256;
  std::size_t max_plan_bytes = std::size_t{8} << 20;

  // What no run needed for this long is given back, by the arenas and by the pool (Allocator::trim): at the end of a
  // run, and by give_back(). Between one and two times this long after its last use. Zero: never.
  std::chrono::milliseconds decay{10'000};
  ArenaPages pages = {};
  // The time, for tests. Null: the steady clock.
  std::function<std::chrono::steady_clock::time_point()> clock = nullptr;

  static constexpr unsigned kMaxArenas = 256;
  static constexpr unsigned kOnePerProcessor = 0xffff'ffff;
};

// Counters since the Replay was made. Those of runs that are in progress are included.
struct ReplayCounters {
  std::uint64_t runs = 0;            // completed
  std::uint64_t recorded_runs = 0;   // of these, recorded because there was no plan
  std::uint64_t predicted_runs = 0;  // of these, with a plan of predicted requests
  std::uint64_t deviating_runs = 0;  // of these, with at least one request that the plan could not serve
  std::uint64_t pooled_runs = 0;     // of these, served by the pool although there was a plan: no arena was free
  std::uint64_t waits = 0;           // runs that waited for an arena or for a recording
  std::uint64_t requests = 0;        // made inside runs
  std::uint64_t planned = 0;         // of these, served from an arena
  std::uint64_t reordered = 0;       // of these, out of order
  std::uint64_t deviated = 0;        // served by the pool although the run had a plan; kept requests not counted
  std::uint64_t unattributed = 0;    // made while several runs were in progress, by a thread that began none of them
  std::uint64_t renewals = 0;        // plans replaced by a new one
  std::uint64_t predictions = 0;     // plans made for shapes that were not recorded
  std::uint64_t unlearned = 0;       // keys with dimensions whose requests are no function of them that was found
  std::uint64_t plans = 0;           // currently kept
  std::uint64_t plan_bytes = 0;      // their memory
  std::uint64_t forgotten = 0;       // plans dropped to stay within the bounds
  std::uint64_t arenas = 0;          // currently holding memory
  std::uint64_t arenas_peak = 0;     // most runs that followed plans at once
  std::uint64_t arena_bytes = 0;     // currently held by the arenas
  std::uint64_t given_back = 0;      // bytes given back after the decay
  std::uint64_t pool_bytes = 0;      // currently in use from the pool, as requested
  std::uint64_t pool_peak = 0;       // highest pool_bytes so far
  std::uint64_t beside_peak = 0;     // most pool bytes used by planned runs at once: kept and deviated requests
};
std::string to_string(const ReplayCounters& counters);

// The result of one run.
struct ReplayRun {
  bool recorded = false;        // there was no plan
  bool predicted = false;       // the plan was made from learned requests; this shape has not been recorded
  std::uint64_t requests = 0;   // made in this run
  std::uint64_t planned = 0;    // of these, served from the arena
  std::uint64_t reordered = 0;  // served from the arena, out of order
  std::uint64_t deviated = 0;   // not in the plan: served by the pool
};

class Replay {
 public:
  // The dimensions of a run: every number that its requests depend on, such as all extents of all inputs, in an order
  // that is the same for each run of a key. Those that never change cost nothing.
  using Dimensions = std::span<const std::int64_t>;

  // Allocates arenas from `arena_memory` and everything else (recorded runs, deviations, requests outside a run) from
  // `pool`. The memory is never accessed, so it may be device memory. Requires: both are non-null.
  Replay(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options = {});
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Begins a run on the calling thread. Runs with equal keys and dimensions are expected to make the same requests; a
  // key should contain the model and which outputs are wanted. What is recorded and not planned yet is planned here.
  // kOutOfMemory if the arena cannot be allocated, or the error of the planner; the run has then still begun and is
  // served by the pool. Every begin_run() needs an end_run() on the same thread, whatever it returned. It may wait for
  // the end of another run: the caller must hold no lock that ends runs.
  Result<void> begin_run(std::string_view key, Dimensions dimensions = {});

  // Ends the run of the calling thread, or, if that has none, the only run in progress, and returns its result. Nothing
  // is learned from a run that failed: it may have stopped anywhere.
  ReplayRun end_run(bool failed = false) noexcept;

  // Returns at least `bytes` bytes. Null for zero bytes, or if the pool has no memory. While a run follows its plan:
  // O(1), no heap allocation, no lock that another run takes. Otherwise O(log live) to search and O(live) to insert.
  void* allocate(std::size_t bytes, std::size_t alignment = 1) noexcept;

  // Releases memory that allocate() returned; null is ignored. Any other pointer is a bug of the caller and stops the
  // program with a message. O(arenas) for memory that is not in the arena of the calling thread's run.
  void release(void* memory) noexcept;

  // True if this memory is in an arena or came from the pool: for hooks that also see other memory.
  bool owns(const void* memory) const noexcept;

  // The requested size of live memory; 0 if it does not come from here. O(1) for pooled memory, O(requests) for planned
  // memory.
  std::size_t size_of(const void* memory) const noexcept;

  // Plans the keys that are recorded but not planned yet, as the next begin_run would, and allocates an arena for the
  // largest plan. Call it after the outputs of the recorded run are released, to choose when planning happens.
  Result<void> plan_recorded();

  // The trace and the plan of a key; null if there is none (yet). They stay as they are when the key is planned anew.
  std::shared_ptr<const ReplayTrace> trace(std::string_view key, Dimensions dimensions = {}) const;
  std::shared_ptr<const MemoryPlan> plan(std::string_view key, Dimensions dimensions = {}) const;

  // Drops everything recorded, learned and planned for a key: its session is closed. Runs in progress are not affected.
  void forget(std::string_view key) noexcept;

  // Gives back what recent runs did not need, as the end of a run does: for a timer in a process that may be idle.
  // With `now`, everything that no run in progress and no live memory needs, whatever the decay. Returns the bytes.
  std::uint64_t give_back(bool now = false) noexcept;

  // Serialises all plans of recorded runs. `stamp` identifies what they are for (model, engine, settings).
  std::string save_plans(std::string_view stamp) const;

  // Loads plans saved with the same stamp, so that no run needs to be recorded. Every plan is validated; known keys are
  // not changed. kInvalidData for bytes that save_plans did not write or that were damaged; kNotFound if the stamp
  // differs. A failed call changes nothing.
  Result<void> load_plans(std::string_view bytes, std::string_view stamp);

  ReplayCounters counters() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth
