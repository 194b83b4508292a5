// What a Replay knows of its runs: for each key and its dimensions the recording or the plan, and for each key with
// dimensions what was learned from its recordings. Plans are bounded in number and bytes. No locks; used under the lock
// of the Replay that owns it, except for the plans, which are immutable and shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "berth/run/replay.h"
#include "run/replay_plan.h"
#include "run/shape_model.h"

namespace berth::internal::replay {

struct KnownKey;

// One key with one list of dimensions. Shared with the runs that use it, and may outlive its key.
struct KnownShape {
  std::weak_ptr<KnownKey> key;
  std::vector<std::int64_t> dimensions;
  // The plan also serves all dimensions on the straight way from `dimensions` to these. Empty: it does not.
  std::vector<std::int64_t> until;
  bool interrupted = false;    // some dimensions on that way have a plan of their own
  ReplayTrace trace;           // recorded and not planned yet
  std::uint64_t trace_id = 0;  // of `trace`
  bool to_plan = false;        // `trace` is to be planned
  std::shared_ptr<const ReplayPlan> plan;
  std::uint32_t kind = 0;        // of its events, in the model
  std::uint64_t kept_known = 0;  // KnownKey::kept_known when the plan was made
  // Written by runs, without the lock.
  std::atomic<unsigned> deviating{0};  // consecutive deviating runs
  std::atomic<unsigned> renewals{0};
  // Read by runs, without the lock: smaller requests than planned are no news, because the plan is for larger
  // dimensions and its prediction was not one of several.
  std::atomic<bool> expects_smaller{true};
  bool improve = false;   // the planner may find a smaller plan than the one it has
  bool attached = false;  // in the table of its key
  std::uint64_t last_use = 0;
  std::size_t footprint = 0;
};
using ShapePtr = std::shared_ptr<KnownShape>;

struct KnownKey {
  KnownKey(std::size_t max_recordings, std::uint64_t alignment) : model(max_recordings, alignment) {}
  ShapeModel model;
  std::map<std::vector<std::int64_t>, ShapePtr> shapes;
  std::uint64_t kept_known = 0;  // how often a request was found to be kept
  ShapePtr last;                 // found last; the next run is often the same or its next step
};

// A request that is live between runs: its trace and its number in it.
using LiveRequest = std::pair<std::uint64_t, std::uint32_t>;

class KnownRuns {
 public:
  explicit KnownRuns(const ReplayOptions& options) : options_(options) {}

  // The shape, or a new one that is not attached to its key yet: it is when it gets a recording or a plan.
  ShapePtr find(std::string_view key, std::span<const std::int64_t> dimensions);
  const KnownShape* look_up(std::string_view key, std::span<const std::int64_t> dimensions) const;

  // Even numbers; the runs themselves have odd ones.
  std::uint64_t next_trace() noexcept { return last_trace_ += 2; }

  // A run without a plan was recorded, or one with a plan made other requests than planned.
  void observed(const ShapePtr& shape, ReplayTrace trace, std::uint64_t trace_id);
  // A run followed its predicted plan and made smaller requests, which it did not expect: the next one has a new plan.
  void learned(const ShapePtr& shape, const ReplayTrace& trace);
  // Recordings wait to be planned.
  bool pending() const noexcept { return !pending_.empty(); }
  // Plans them all; those of `live` that they made are kept. The first error of the planner.
  Result<void> plan_pending(std::span<const LiveRequest> live);
  // Requests of earlier runs are live although their arena is taken again: their plans are to be made anew, without
  // them.
  void keep(std::span<const LiveRequest> live);

  // Gives a shape without a plan one of predicted requests, if its key has learned enough; and one whose plan may be
  // improved a better one.
  Result<void> prepare(const ShapePtr& shape);

  void forget(std::string_view key) noexcept;
  std::vector<NamedPlan> observed_plans() const;
  void load(DecodedPlan decoded);
  // The largest plan and the largest alignment of any.
  std::pair<std::uint64_t, std::uint64_t> largest() const noexcept;
  void count(ReplayCounters& counters) const noexcept;

 private:
  void attach(const ShapePtr& shape);
  void set_plan(const ShapePtr& shape, std::shared_ptr<const ReplayPlan> plan, bool shared);
  Result<void> plan_shape(const ShapePtr& shape);
  Result<MemoryPlan> search(const PlanProblem& problem) const;
  bool predict(const ShapePtr& shape, KnownKey& key);
  std::shared_ptr<const ReplayPlan> dominating(const KnownShape& shape, const KnownKey& key,
                                               const ShapeModel::Prediction& prediction) const;
  std::shared_ptr<const ReplayPlan> lay_out_ahead(KnownShape& shape, KnownKey& key,
                                                  const ShapeModel::Prediction& current);
  std::shared_ptr<ReplayPlan> lay_out(KnownKey& key, ShapeModel::Prediction prediction);
  void stay_within_bounds(const KnownShape* but);
  void forget_trace(const KnownShape& shape) noexcept;
  void drop(KnownKey& key, const ShapePtr& shape) noexcept;

  const ReplayOptions& options_;
  std::map<std::string, std::shared_ptr<KnownKey>, std::less<>> keys_;
  std::vector<ShapePtr> pending_;
  std::unordered_map<std::uint64_t, std::weak_ptr<KnownShape>> by_trace_;  // of plans
  std::uint64_t last_trace_ = 0;
  std::uint64_t uses_ = 0;
  std::size_t attached_ = 0, plan_bytes_ = 0;
  std::uint64_t predictions_ = 0, forgotten_ = 0;
};

}  // namespace berth::internal::replay
