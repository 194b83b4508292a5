// Record, plan, replay: memory for an engine that makes the same requests in every run. A Replay is called from the
// allocator hook of the engine. It records the first run, in which every request gets separate memory. Later runs are
// served from one arena whose layout was planned in advance, and a request costs one comparison.
//
// The engine is not trusted to repeat itself. A request that does not match the recording is looked up among the
// planned requests of the same size (threads may change the order); if none is free, a pool serves it, and it is
// counted. Memory that is live is never returned again, whatever the engine does: while a run follows the recording
// event by event, the plan guarantees this, and from the first difference on, every slot is checked against the live
// ones. After several deviating runs in a row, the plan is renewed from what was observed. Memory that is still live
// when the next run begins (an output that the user keeps) is left out of the arena by the next plan.
//
// allocate() and release() may be called from any thread at any time. begin_run() and end_run() delimit a run; they may
// be called from any thread, for one run at a time. A run that begins inside another joins it and is served with all
// checks enabled. A Replay must outlive all memory it returned. Engines whose runs never overlap can share one Replay
// with one key each; the arena is then as large as the largest plan, not as their sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

class Allocator;

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

struct ReplayOptions {
  // Minimum alignment of every request, a power of two. A smaller request needs only the largest alignment that its
  // size holds.
  std::uint64_t alignment = 64;
  unsigned renew_after = 3;       // number of consecutive deviating runs after which the plan is renewed; 0: never
  unsigned max_renewals = 8;      // per key; after that, the pool serves an engine that never repeats itself
  std::uint64_t arena_slack = 0;  // bytes after the last slot, for engines that read past the end of their requests
  PlanOptions planning = {};
  // The planner. Null: berth::plan. Every plan is checked by berth::validate before it is used.
  std::function<Result<MemoryPlan>(const PlanProblem&)> planner = nullptr;
};

// Counters since the Replay was made.
struct ReplayCounters {
  std::uint64_t runs = 0;            // completed
  std::uint64_t recorded_runs = 0;   // of these, recorded because their key was new
  std::uint64_t deviating_runs = 0;  // of these, with at least one request that the plan could not serve
  std::uint64_t requests = 0;        // made inside runs
  std::uint64_t planned = 0;         // of these, served from the arena
  std::uint64_t reordered = 0;       // of these, out of order
  std::uint64_t deviated = 0;        // served by the pool although the run had a plan; kept requests not counted
  std::uint64_t renewals = 0;        // plans replaced by a new one
  std::uint64_t plans = 0;           // keys with a plan
  std::uint64_t arena_bytes = 0;     // currently held by the arena
  std::uint64_t pool_bytes = 0;      // currently in use from the pool, as requested
  std::uint64_t pool_peak = 0;       // highest pool_bytes so far
  std::uint64_t beside_peak = 0;     // most pool bytes used by planned runs at once: kept and deviated requests
};
std::string to_string(const ReplayCounters& counters);

// The result of one run.
struct ReplayRun {
  bool recorded = false;        // there was no plan for this key
  std::uint64_t requests = 0;   // made in this run
  std::uint64_t planned = 0;    // of these, served from the arena
  std::uint64_t reordered = 0;  // served from the arena, out of order
  std::uint64_t deviated = 0;   // not in the plan: served by the pool
};

class Replay {
 public:
  // Allocates the arena from `arena_memory` and everything else (recorded runs, deviations, requests outside a run)
  // from `pool`. The memory is never accessed, so it may be device memory. Requires: both are non-null.
  Replay(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options = {});
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Begins a run. Runs with equal keys are expected to make the same requests; a key should contain the model and its
  // input shapes. A recorded key is planned here, before its second run. kOutOfMemory if the arena cannot be allocated,
  // or the error of the planner; the run has then still begun and is served by the pool.
  Result<void> begin_run(std::string_view key);

  // Ends the run and returns its result.
  ReplayRun end_run() noexcept;

  // Returns at least `bytes` bytes. Null for zero bytes, or if the pool has no memory. While a run follows its plan:
  // O(1), no heap allocation. Otherwise O(log live) to search and O(live) to insert.
  void* allocate(std::size_t bytes, std::size_t alignment = 1) noexcept;

  // Releases memory that allocate() returned; null is ignored. Any other pointer is a bug of the caller and stops the
  // program with a message.
  void release(void* memory) noexcept;

  // True if this memory is in the arena or came from the pool: for hooks that also see other memory.
  bool owns(const void* memory) const noexcept;

  // The requested size of live memory; 0 if it does not come from here. O(1) for pooled memory, O(requests) for planned
  // memory.
  std::size_t size_of(const void* memory) const noexcept;

  // Plans the keys that are recorded but not planned yet, as the next begin_run would. Call it after the outputs of the
  // recorded run are released, to choose when planning happens. Requires: no run is in progress.
  Result<void> plan_recorded();

  // The trace and the plan of a key; null if there is none (yet). Valid until the next begin_run or plan_recorded.
  const ReplayTrace* trace(std::string_view key) const noexcept;
  const MemoryPlan* plan(std::string_view key) const noexcept;

  // Serialises all plans. `stamp` identifies what they are for (model, engine, settings).
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
