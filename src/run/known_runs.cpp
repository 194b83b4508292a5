#include "run/known_runs.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "base/try.h"
#include "run/extents.h"
#include "run/let_down.h"

namespace berth::internal::replay {
namespace {

// A plan may be this much larger than the smallest conceivable one before the planner is asked for a better one, and
// for a plan of a larger shape to be used.
constexpr double kGoodEnough = 1.01;
constexpr double kDominates = 1.015;
// A plan for the next steps of dimensions that grow may be this much larger than the first of them needs, and is made
// for at most so many.
constexpr double kAhead = 1 + 1.0 / 32;
constexpr std::int64_t kMostAhead = 64;

std::uint64_t live_load(const ReplayTrace& trace) noexcept {
  std::uint64_t live = 0, peak = 0;
  std::size_t next_release = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    while (next_release < trace.releases.size() && trace.requests[trace.releases[next_release]].released_at <= i)
      live -= slot_bytes(trace.requests[trace.releases[next_release++]]);
    live += slot_bytes(trace.requests[i]);
    peak = std::max(peak, live);
  }
  return peak;
}

bool within(std::uint64_t size, std::uint64_t bound, double factor) noexcept {
  return static_cast<double>(size) <= static_cast<double>(bound) * factor;
}

// Whether a run that may make these requests follows the plan of another prediction.
bool serves(const ReplayTrace& planned, std::span<const std::uint64_t> least,
            const ShapeModel::Prediction& run) noexcept {
  if (planned.requests.size() != run.trace.requests.size()) return false;
  for (std::size_t i = 0; i < least.size(); ++i) {
    const std::uint64_t bytes = planned.requests[i].bytes;
    if (bytes < run.trace.requests[i].bytes || served_from(bytes, least[i]) > run.least[i]) return false;
  }
  return true;
}

using Shapes = std::map<Extents, ShapePtr>;

// What these dimensions have grown by, if they do so evenly: the last dimensions of the four shapes before them are
// the same step apart, and were used one after the other, with not many others between; or a plan that was made for
// growing ones ended a step ago. Empty: they do not. Many sequences may grow at the same time.
Extents growth(const Shapes& shapes, const Extents& now, std::uint64_t uses) {
  constexpr int kSteady = 4;
  constexpr std::uint64_t kBetween = 8;  // uses
  Extents step;
  const Extents* after = &now;
  std::uint64_t used = uses;
  auto at = shapes.lower_bound(now);
  for (int i = 0; i < kSteady; ++i) {
    if (at == shapes.begin()) return {};
    const KnownShape& before = *(--at)->second;
    const Extents by = difference(before.until.empty() ? before.dimensions : before.until, *after);
    if (by.empty() || (i > 0 && by != step) || before.last_use > used || used - before.last_use > kBetween) return {};
    step = by;
    if (!before.until.empty()) {
      // It is not known in how many steps it went through; they were not longer than its length.
      const Extents length = difference(before.dimensions, before.until);
      for (std::size_t d = 0; d < step.size(); ++d)
        if (step[d] > length[d]) return {};
      return on_the_way(before.dimensions, *after, before.until) ? step : Extents{};
    }
    after = &before.dimensions;
    used = before.last_use;
  }
  return step;
}

// It has these dimensions, or its plan serves them on the way of what grows.
bool serves(const KnownShape& shape, const KnownKey& key, const Extents& wanted) {
  if (!shape.attached) return false;
  if (shape.dimensions == wanted) return true;
  return !shape.until.empty() && shape.plan != nullptr && shape.plan->predicted && shape.kept_known == key.kept_known &&
         on_the_way(shape.dimensions, shape.until, wanted);
}

// Null: there is none. What is in the table comes before what is on the way of another, and lies behind its first
// dimensions there.
const ShapePtr* find_serving(const KnownKey& key, const Extents& wanted) {
  if (key.last != nullptr && !key.last->interrupted && serves(*key.last, key, wanted)) return &key.last;
  constexpr int kTries = 4;
  auto at = key.shapes.upper_bound(wanted);
  for (int i = 0; i < kTries && at != key.shapes.begin(); ++i)
    if (const ShapePtr& before = (--at)->second; serves(*before, key, wanted)) return &before;
  return nullptr;
}

}  // namespace

ShapePtr KnownRuns::find(std::string_view key, std::span<const std::int64_t> dimensions) {
  auto at = keys_.find(key);
  if (at == keys_.end())
    at = keys_.emplace(std::string(key), std::make_shared<KnownKey>(options_.max_recordings, options_.alignment)).first;
  std::vector<std::int64_t> wanted(dimensions.begin(), dimensions.end());
  const ShapePtr* known = find_serving(*at->second, wanted);
  if (known != nullptr) {
    at->second->last = *known;
    known = &at->second->last;
    (*known)->last_use = ++uses_;
    if ((*known)->dimensions == wanted) return *known;
  }
  auto shape = std::make_shared<KnownShape>();
  shape->key = at->second;
  shape->dimensions = std::move(wanted);
  shape->last_use = ++uses_;
  if (known != nullptr) {
    shape->plan = (*known)->plan;
    shape->kind = (*known)->kind;
    shape->kept_known = (*known)->kept_known;
  }
  return shape;
}

const KnownShape* KnownRuns::look_up(std::string_view key, std::span<const std::int64_t> dimensions) const {
  const auto at = keys_.find(key);
  if (at == keys_.end()) return nullptr;
  const ShapePtr* known = find_serving(*at->second, {dimensions.begin(), dimensions.end()});
  return known == nullptr ? nullptr : known->get();
}

void KnownRuns::attach(const ShapePtr& shape) {
  const std::shared_ptr<KnownKey> key = shape->key.lock();
  if (shape->attached || key == nullptr) return;
  const auto [at, fresh] = key->shapes.try_emplace(shape->dimensions, shape);
  if (!fresh) {
    // Another run with the same dimensions was first; the newer one counts.
    drop(*key, at->second);
    key->shapes.emplace(shape->dimensions, shape);
  }
  shape->attached = true;
  ++attached_;
  stay_within_bounds(shape.get());
}

void KnownRuns::observed(const ShapePtr& shape, ReplayTrace trace, std::uint64_t trace_id) {
  const std::shared_ptr<KnownKey> key = shape->key.lock();
  if (key == nullptr) return;  // forgotten meanwhile
  if (!shape->dimensions.empty() && options_.max_recordings > 0) shape->kind = key->model.add(shape->dimensions, trace);
  shape->trace = std::move(trace);
  shape->trace_id = trace_id;
  shape->until.clear();
  // What was planned for its way did not serve it.
  if (const ShapePtr* on_way = find_serving(*key, shape->dimensions)) (*on_way)->interrupted = true;
  attach(shape);
  if (!shape->to_plan) pending_.push_back(shape);
  shape->to_plan = true;
}

void KnownRuns::learned(const ShapePtr& shape, const ReplayTrace& trace) {
  const std::shared_ptr<KnownKey> key = shape->key.lock();
  if (key == nullptr) return;
  key->model.add(shape->dimensions, trace);
  if (shape->attached && !shape->to_plan) drop(*key, shape);
}

Result<void> KnownRuns::plan_pending(std::span<const LiveRequest> live) {
  Result<void> first_failure;
  std::vector<ShapePtr> pending;
  pending.swap(pending_);
  for (const ShapePtr& shape : pending) {
    shape->to_plan = false;
    if (!shape->attached) continue;
    const std::shared_ptr<KnownKey> key = shape->key.lock();
    for (const auto& [trace, number] : live) {
      if (trace != shape->trace_id || number >= shape->trace.requests.size()) continue;
      shape->trace.requests[number].kept = true;
      if (key->model.mark_kept(shape->kind, number)) ++key->kept_known;
    }
    if (Result<void> planned = plan_shape(shape); !planned && first_failure) first_failure = std::move(planned);
  }
  return first_failure;
}

void KnownRuns::keep(std::span<const LiveRequest> live) {
  for (const auto& [trace, number] : live) {
    const auto at = by_trace_.find(trace);
    const ShapePtr shape = at == by_trace_.end() ? nullptr : at->second.lock();
    if (shape == nullptr || !shape->attached || shape->plan == nullptr || shape->plan->trace_id != trace) continue;
    if (number >= shape->plan->trace.requests.size() || shape->plan->trace.requests[number].kept) continue;
    const std::shared_ptr<KnownKey> key = shape->key.lock();
    if (key->model.mark_kept(shape->kind, number)) ++key->kept_known;
    if (shape->plan->predicted) continue;  // predicted anew by prepare()
    if (!shape->to_plan) {
      shape->trace = shape->plan->trace;
      shape->trace_id = trace;
      shape->to_plan = true;
      pending_.push_back(shape);
    }
    if (number < shape->trace.requests.size()) shape->trace.requests[number].kept = true;
  }
}

Result<MemoryPlan> KnownRuns::search(const PlanProblem& problem) const {
  return options_.planner ? options_.planner(problem) : berth::plan(problem, options_.planning);
}

Result<void> KnownRuns::plan_shape(const ShapePtr& shape) {
  const PlanProblem problem = plan_problem(shape->trace);
  BERTH_TRY_ASSIGN(MemoryPlan memory, search(problem));
  BERTH_TRY(check(shape->trace, problem, memory));
  auto plan = std::make_shared<ReplayPlan>(std::exchange(shape->trace, {}), std::move(memory));
  plan->trace_id = shape->trace_id;
  const std::shared_ptr<KnownKey> key = shape->key.lock();
  if (!shape->dimensions.empty()) key->model.add_order(shape->kind, order_of_offsets(plan->memory));
  shape->improve = false;
  set_plan(shape, std::move(plan), false);
  return {};
}

void KnownRuns::set_plan(const ShapePtr& shape, std::shared_ptr<const ReplayPlan> plan, bool shared) {
  attach(shape);
  plan_bytes_ -= shape->footprint;
  shape->footprint = sizeof(KnownShape) + (shared ? 0 : plan->footprint());
  plan_bytes_ += shape->footprint;
  forget_trace(*shape);
  by_trace_[plan->trace_id] = shape;
  shape->plan = std::move(plan);
  if (const std::shared_ptr<KnownKey> key = shape->key.lock()) shape->kept_known = key->kept_known;
  stay_within_bounds(shape.get());
}

std::shared_ptr<ReplayPlan> KnownRuns::lay_out(KnownKey& key, ShapeModel::Prediction prediction) {
  const auto start = std::chrono::steady_clock::now();
  const PlanProblem problem = plan_problem(prediction.trace);
  MemoryPlan memory = let_down(problem, key.model.orders(prediction.kind));
  if (!check(prediction.trace, problem, memory)) return nullptr;
  memory.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  auto plan = std::make_shared<ReplayPlan>(std::move(prediction.trace), std::move(memory), std::move(prediction.least));
  plan->trace_id = next_trace();
  ++predictions_;
  return plan;
}

std::shared_ptr<const ReplayPlan> KnownRuns::dominating(const KnownShape& shape, const KnownKey& key,
                                                        const ShapeModel::Prediction& prediction) const {
  const ReplayTrace& trace = prediction.trace;
  const std::uint64_t load = live_load(trace);
  for (const auto& [dimensions, other] : key.shapes) {
    if (other->plan == nullptr || !other->plan->predicted || other->kept_known != key.kept_known ||
        other->plan->memory.size < load || !within(other->plan->memory.size, load, kDominates) ||
        other->plan->trace.requests.size() != trace.requests.size())
      continue;
    bool aligned = true;
    for (std::size_t i = 0; i < trace.requests.size() && aligned; ++i)
      aligned = other->plan->trace.requests[i].alignment >= trace.requests[i].alignment;
    if (aligned && other->kind == shape.kind && serves(other->plan->trace, other->plan->least, prediction))
      return other->plan;
  }
  return nullptr;
}

std::shared_ptr<const ReplayPlan> KnownRuns::lay_out_ahead(KnownShape& shape, KnownKey& key,
                                                           const ShapeModel::Prediction& current) {
  // The dimensions grow from run to run, as with a cache of what a decoder has read: one plan for the next few. What
  // is between two steps is not predicted again, so it must be sure to lie between them.
  if (!current.certain || !current.monotone) return nullptr;
  const std::vector<std::int64_t> step = growth(key.shapes, shape.dimensions, uses_);
  if (step.empty()) return nullptr;
  const auto ahead = [&](std::int64_t steps) -> std::optional<ShapeModel::Prediction> {
    std::optional<std::vector<std::int64_t>> last = advance(shape.dimensions, step, steps);
    if (!last) return std::nullopt;
    std::optional<ShapeModel::Prediction> prediction = key.model.predict(*last);
    if (prediction && (!prediction->certain || prediction->kind != shape.kind)) return std::nullopt;
    shape.until = std::move(*last);
    return prediction;
  };
  const std::uint64_t load = live_load(current.trace);
  std::int64_t steps = kMostAhead;
  std::optional<ShapeModel::Prediction> prediction = ahead(steps);
  if (prediction && !within(live_load(prediction->trace), load, kAhead)) {
    // The bytes grow about evenly over so few steps.
    const auto more = static_cast<double>(live_load(prediction->trace) - load);
    steps = static_cast<std::int64_t>(static_cast<double>(steps) * static_cast<double>(load) * (kAhead - 1) / more);
    prediction = steps > 0 ? ahead(steps) : std::nullopt;
  }
  std::shared_ptr<const ReplayPlan> plan;
  if (prediction && serves(prediction->trace, prediction->least, current)) plan = lay_out(key, std::move(*prediction));
  if (plan != nullptr && !within(plan->memory.size, load, kAhead)) plan = nullptr;
  if (plan == nullptr) shape.until.clear();
  return plan;
}

bool KnownRuns::predict(const ShapePtr& shape, KnownKey& key) {
  std::optional<ShapeModel::Prediction> prediction = key.model.predict(shape->dimensions);
  if (!prediction) return false;
  shape->until.clear();
  shape->kind = prediction->kind;
  const bool certain = prediction->certain;
  shape->improve = false;
  std::shared_ptr<const ReplayPlan> plan = dominating(*shape, key, *prediction);
  const bool shared = plan != nullptr;
  if (!shared) plan = lay_out_ahead(*shape, key, *prediction);
  if (plan == nullptr) {
    plan = lay_out(key, std::move(*prediction));
    if (plan != nullptr) shape->improve = !within(plan->memory.size, plan->memory.lower_bound, kGoodEnough);
  }
  if (plan == nullptr) return false;
  shape->expects_smaller = certain && (shared || !shape->until.empty());
  set_plan(shape, std::move(plan), shared);
  return true;
}

Result<void> KnownRuns::prepare(const ShapePtr& shape) {
  const std::shared_ptr<KnownKey> key = shape->key.lock();
  if (key == nullptr || shape->dimensions.empty() || options_.max_recordings == 0) return {};
  const bool outdated =
      shape->plan != nullptr && shape->plan->predicted && shape->kept_known != key->kept_known && !shape->to_plan;
  if (shape->plan == nullptr || outdated) {
    static_cast<void>(predict(shape, *key));
    return {};
  }
  if (!shape->improve) return {};
  // The second run of a shape whose slots do not go down far enough: a search is worth its time now.
  shape->improve = false;
  ReplayTrace trace = shape->plan->trace;
  const PlanProblem problem = plan_problem(trace);
  BERTH_TRY_ASSIGN(MemoryPlan memory, search(problem));
  BERTH_TRY(check(trace, problem, memory));
  if (memory.size >= shape->plan->memory.size) return {};
  key->model.add_order(shape->kind, order_of_offsets(memory));
  auto plan = std::make_shared<ReplayPlan>(std::move(trace), std::move(memory), shape->plan->least);
  plan->trace_id = next_trace();
  set_plan(shape, std::move(plan), false);
  return {};
}

void KnownRuns::forget_trace(const KnownShape& shape) noexcept {
  if (shape.plan == nullptr) return;
  // The plan may be that of another shape.
  const auto at = by_trace_.find(shape.plan->trace_id);
  if (at != by_trace_.end() && at->second.lock().get() == &shape) by_trace_.erase(at);
}

void KnownRuns::drop(KnownKey& key, const ShapePtr& shape) noexcept {
  // The argument may be the table's own.
  const ShapePtr held = shape;  // NOLINT(performance-unnecessary-copy-initialization)
  if (!held->attached) return;
  held->attached = false;
  --attached_;
  plan_bytes_ -= held->footprint;
  held->footprint = 0;
  forget_trace(*held);
  if (key.last == held) key.last = nullptr;
  std::erase(pending_, held);
  held->to_plan = false;
  key.shapes.erase(held->dimensions);
}

void KnownRuns::stay_within_bounds(const KnownShape* but) {
  while (attached_ > std::max<std::size_t>(options_.max_plans, 1) || plan_bytes_ > options_.max_plan_bytes) {
    ShapePtr oldest;
    auto of = keys_.end();
    for (auto key = keys_.begin(); key != keys_.end(); ++key)
      for (auto& [dimensions, shape] : key->second->shapes)
        if (shape.get() != but && (oldest == nullptr || shape->last_use < oldest->last_use)) {
          oldest = shape;
          of = key;
        }
    if (oldest == nullptr) return;
    drop(*of->second, oldest);
    ++forgotten_;
    if (of->second->shapes.empty() && of->second->model.recordings() == 0) keys_.erase(of);
  }
}

void KnownRuns::forget(std::string_view key) noexcept {
  const auto at = keys_.find(key);
  if (at == keys_.end()) return;
  while (!at->second->shapes.empty()) drop(*at->second, at->second->shapes.begin()->second);
  keys_.erase(at);
}

std::vector<NamedPlan> KnownRuns::observed_plans() const {
  std::vector<NamedPlan> plans;
  for (const auto& [name, key] : keys_)
    for (const auto& [dimensions, shape] : key->shapes)
      if (shape->plan != nullptr && !shape->plan->predicted) plans.push_back({name, dimensions, shape->plan.get()});
  return plans;
}

void KnownRuns::load(DecodedPlan decoded) {
  const ShapePtr shape = find(decoded.key, decoded.dimensions);
  if (shape->plan != nullptr || shape->to_plan) return;
  auto plan = std::make_shared<ReplayPlan>(std::move(decoded.trace), std::move(decoded.memory));
  plan->trace_id = next_trace();
  if (!shape->dimensions.empty() && options_.max_recordings > 0) {
    const std::shared_ptr<KnownKey> key = shape->key.lock();
    shape->kind = key->model.add(shape->dimensions, plan->trace);
    key->model.add_order(shape->kind, order_of_offsets(plan->memory));
  }
  set_plan(shape, std::move(plan), false);
}

std::pair<std::uint64_t, std::uint64_t> KnownRuns::largest() const noexcept {
  std::uint64_t bytes = 0, alignment = options_.alignment;
  for (const auto& [name, key] : keys_)
    for (const auto& [dimensions, shape] : key->shapes)
      if (shape->plan != nullptr) {
        bytes = std::max(bytes, shape->plan->memory.size);
        alignment = std::max(alignment, shape->plan->alignment);
      }
  return {bytes, alignment};
}

void KnownRuns::count(ReplayCounters& counters) const noexcept {
  for (const auto& [name, key] : keys_) {
    counters.unlearned += key->model.unlearned() ? 1 : 0;
    for (const auto& [dimensions, shape] : key->shapes) counters.plans += shape->plan != nullptr ? 1 : 0;
  }
  counters.plan_bytes = plan_bytes_;
  counters.predictions = predictions_;
  counters.forgotten = forgotten_;
}

}  // namespace berth::internal::replay
