// Record, plan, replay: memory for an engine that asks for the same things run after run. A Replay stands behind an
// engine's allocator hook. The first run is recorded: every request gets memory of its own. From then on the run is
// served out of one arena, laid out ahead of time by the planner, and a request costs a comparison.
//
// Nothing is assumed of the engine. A request that does not match the recording is first looked for among the plan's
// requests of the same size (threads may change the order), then served by a pool, and counted. Memory that is live
// is never handed out again, whatever the engine does: as long as a run follows the recording event by event the plan
// itself guarantees it, and from the first difference on every slot is checked against the live ones. After a few
// deviating runs in a row the plan is renewed from what was seen. What is still live when the next run begins (an
// output that its user keeps) is left out of the arena by the next plan.
//
// allocate() and release() may be called from any thread at any time. begin_run() and end_run() bracket a run; they
// may be called from any thread, one run at a time: a run that begins inside another joins it and is served with all
// checks on. A Replay must outlive all memory it handed out. Engines whose runs never overlap can share one Replay,
// with a key each: the arena is then as large as the largest plan, not as the sum.
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

// One request of a recorded run. Positions count the run's requests: request i is made at position i, and one that is
// released after request j and before request j + 1 lives [i, j + 1).
struct ReplayRequest {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
  std::uint32_t released_at = kNeverReleased;  // position; kNeverReleased: live at the end of the run
  bool kept = false;                           // seen live when a later run began: stays out of the arena

  static constexpr std::uint32_t kNeverReleased = 0xffff'ffff;
  friend bool operator==(const ReplayRequest&, const ReplayRequest&) = default;
};

// A recorded run. `releases` has one entry for each release, in the order in which they were made.
struct ReplayTrace {
  std::vector<ReplayRequest> requests;
  std::vector<std::uint32_t> releases;  // request numbers

  // The largest sum of bytes live at once, as asked for: no allocator can do with less.
  std::uint64_t live_peak() const noexcept;
  friend bool operator==(const ReplayTrace&, const ReplayTrace&) = default;
};

// The planning problem of a recorded run: one lifetime a request, its bytes rounded up to its alignment where that is a
// cache line or more; kept requests have zero bytes and so no slot.
PlanProblem plan_problem(const ReplayTrace& trace);

struct ReplayOptions {
  // Least alignment of every request, a power of two; a smaller request needs only the largest that its size holds.
  std::uint64_t alignment = 64;
  unsigned renew_after = 3;   // deviating runs in a row after which the plan is renewed; 0: never
  unsigned max_renewals = 8;  // for one key; an engine that never repeats itself is left to the pool
  std::uint64_t arena_slack =
      0;  // bytes after the last slot, for engines that read past the end of what they asked for
  PlanOptions planning = {};
  // Who plans. DryRun: berth::plan. Every plan is checked by berth::validate before it is used.
  std::function<Result<MemoryPlan>(const PlanProblem&)> planner = nullptr;
};

// Counters since the Replay was made.
struct ReplayCounters {
  std::uint64_t runs = 0;            // ended
  std::uint64_t recorded_runs = 0;   // of these, recorded: a new key
  std::uint64_t deviating_runs = 0;  // of these, with at least one request that the plan could not serve
  std::uint64_t requests = 0;        // made inside runs
  std::uint64_t planned = 0;         // of these, served from the arena
  std::uint64_t reordered = 0;       // of these, out of order
  std::uint64_t deviated = 0;        // served by the pool although the run had a plan; kept requests not counted
  std::uint64_t renewals = 0;        // plans made anew
  std::uint64_t plans = 0;           // keys with a plan
  std::uint64_t arena_bytes = 0;     // held by the arena now
  std::uint64_t pool_bytes = 0;      // handed out by the pool now, as asked for
  std::uint64_t pool_peak = 0;       // the most ever
  std::uint64_t beside_peak = 0;     // the most that the pool gave to planned runs at once: kept and deviated requests
};

// What one run did.
struct ReplayRun {
  bool recorded = false;        // there was no plan for this key
  std::uint64_t requests = 0;   // made in this run
  std::uint64_t planned = 0;    // of these, served from the arena
  std::uint64_t reordered = 0;  // served from the arena, out of order
  std::uint64_t deviated = 0;   // not in the plan: served by the pool
};

class Replay {
 public:
  // Takes the arena from `arena_memory` and everything else (recorded runs, deviations, memory asked for outside a
  // run) from `pool`. Memory is never touched, so it may be a device's. Requires: both are non-null.
  Replay(std::shared_ptr<Allocator> arena_memory, std::shared_ptr<Allocator> pool, ReplayOptions options = {});
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Begins a run. Runs with equal keys are expected to make the same requests: name the model and its input shapes.
  // A key that was recorded is planned here, before its second run. Fails with kOutOfMemory when the arena cannot be
  // had, and with what the planner says; the run has then begun all the same and is served by the pool.
  Result<void> begin_run(std::string_view key);

  // Ends the run. Returns what it did.
  ReplayRun end_run() noexcept;

  // Memory of at least `bytes` bytes. DryRun for zero bytes and when the pool has no more. While a run follows its
  // plan: O(1), no allocation. Else O(log live) to search, O(live) to insert.
  void* allocate(std::size_t bytes, std::size_t alignment = 1) noexcept;

  // Takes back what allocate() gave; null is ignored. Memory that was given by neither is a caller's bug and stops
  // the program with a message.
  void release(void* memory) noexcept;

  // Whether this memory is in the arena or was handed out by the pool: for hooks that see other memory too.
  bool owns(const void* memory) const noexcept;

  // The bytes that were asked for behind live memory; 0 when it is not ours. O(1) for pooled memory, O(requests) for
  // planned memory.
  std::size_t size_of(const void* memory) const noexcept;

  // Plans what was recorded and is not planned yet, as the next begin_run would. Call it when the outputs of the
  // recorded run are released, to plan at a moment of your choice. Requires: no run is in progress.
  Result<void> plan_recorded();

  // The trace and plan behind a key; null when there is none (yet). Valid until the next begin_run or plan_recorded.
  const ReplayTrace* trace(std::string_view key) const noexcept;
  const MemoryPlan* plan(std::string_view key) const noexcept;

  // All plans, as bytes for a file. `stamp` says what they are for (model, engine, settings).
  std::string save_plans(std::string_view stamp) const;

  // Takes plans saved under the same stamp, so that no run needs to be recorded. Every plan is validated; keys that
  // are known already stay as they are. Fails with kInvalidData for bytes that save_plans did not make or that were
  // damaged, kNotFound when the stamp is another one. A failed call changes nothing.
  Result<void> load_plans(std::string_view bytes, std::string_view stamp);

  ReplayCounters counters() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth
