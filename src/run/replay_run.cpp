#include "run/replay_run.h"

#include <algorithm>
#include <new>
#include <utility>

namespace berth::internal::replay {
namespace {

// How many unserved requests of the right size are tried before the pool is asked. The first is nearly always free.
constexpr std::uint32_t kMaxTries = 16;

}  // namespace

void PlannedRun::reserve(const ReplayPlan& plan) {
  const std::size_t n = plan.trace.requests.size();
  live_.reserve(live_.size() + n);
  served_.reserve(n);
  class_next_.reserve(plan.classes.size());
  log_.requests.reserve(2 * n);
  log_.releases.reserve(2 * n);
}

void PlannedRun::begin(const ReplayPlan& plan) noexcept {
  plan_ = &plan;
  cursor_ = plan.steps.data();
  steps_end_ = cursor_ + plan.steps.size();
  exact_ = true;
  for (LiveSlot& slot : live_) slot.number = kNoRequest;
  if (!live_.empty()) distrust();
}

void PlannedRun::end() noexcept {
  if (plan_ != nullptr) distrust();
  plan_ = nullptr;
  cursor_ = steps_end_ = nullptr;
}

void PlannedRun::distrust() noexcept {
  if (!exact_) return;
  exact_ = false;
  const ReplayPlan& plan = *plan_;
  served_.assign(plan.trace.requests.size(), 0);
  class_next_.clear();
  for (const SizeClass& size_class : plan.classes) class_next_.push_back(size_class.begin);
  log_.requests.clear();
  log_.releases.clear();
  log_lost_ = false;
  // Everything up to the cursor happened as recorded. served_: 1 while live, 2 when released.
  for (const Step* step = plan.steps.data(); step != cursor_; ++step) {
    if (step->bytes != 0) {
      served_[step->request] = 1;
      ReplayRequest request = plan.trace.requests[step->request];
      request.released_at = kNoRequest;
      log_.requests.push_back(request);
    } else {
      served_[step->request] = 2;
      log_release(step->request);
    }
  }
  for (std::uint32_t i = 0; i < served_.size(); ++i) {
    if (served_[i] != 1 || plan.offsets[i] == kNoOffset) continue;
    live_.push_back({plan.offsets[i], plan.offsets[i] + plan.trace.requests[i].bytes, &plan, i, i});
  }
  std::sort(live_.begin(), live_.end(), [](const LiveSlot& a, const LiveSlot& b) { return a.begin < b.begin; });
}

PlannedRun::Served PlannedRun::request_checked(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  distrust();
  Served served;
  const SizeClass* size_class = plan_->find_class(bytes);
  std::uint32_t found = kNoRequest;
  if (size_class != nullptr) {
    std::uint32_t& next = class_next_[static_cast<std::size_t>(size_class - plan_->classes.data())];
    while (next != size_class->end && served_[plan_->by_size[next]] != 0) ++next;
    std::uint32_t tries = 0;
    for (std::uint32_t i = next; i != size_class->end && tries < kMaxTries; ++i) {
      const std::uint32_t request = plan_->by_size[i];
      if (served_[request] != 0 || alignment > plan_->trace.requests[request].alignment) continue;
      ++tries;
      const std::uint64_t offset = plan_->offsets[request];
      if (offset != kNoOffset && !is_free(offset, offset + bytes)) continue;
      found = request;
      break;
    }
  }
  if (!log_lost_) {
    try {
      served.number = static_cast<std::uint32_t>(log_.requests.size());
      log_.requests.push_back({.bytes = bytes, .alignment = alignment});
    } catch (const std::bad_alloc&) {
      log_lost_ = true;
      served.number = kNoRequest;
    }
  }
  if (found == kNoRequest) return served;

  served_[found] = 1;
  // A request is in order when it is the first of those not served yet: the cursor follows it, past releases.
  while (cursor_ != steps_end_ &&
         (cursor_->bytes == 0 || (served_[cursor_->request] != 0 && cursor_->request != found)))
    ++cursor_;
  served.reordered = cursor_ == steps_end_ || cursor_->request != found;
  served.offset = plan_->offsets[found];
  if (served.offset == kNoOffset) {
    served.kept = true;
    if (served.number != kNoRequest) log_.requests[served.number].kept = true;
    return served;
  }
  const LiveSlot slot{served.offset, served.offset + bytes, plan_, found, served.number};
  const auto at = std::upper_bound(live_.begin(), live_.end(), slot.begin,
                                   [](std::uint64_t begin, const LiveSlot& s) { return begin < s.begin; });
  live_.insert(at, slot);  // reserve() made room for every request of the plan
  return served;
}

bool PlannedRun::release_checked(std::uint64_t offset) noexcept {
  distrust();
  const auto at = std::lower_bound(live_.begin(), live_.end(), offset,
                                   [](const LiveSlot& s, std::uint64_t wanted) { return s.begin < wanted; });
  if (at == live_.end() || at->begin != offset) return false;
  if (plan_ != nullptr && at->number != kNoRequest) log_release(at->number);
  live_.erase(at);
  return true;
}

void PlannedRun::release_pooled(std::uint32_t number) noexcept {
  // A plan leaves to the pool only what outlives its run; this one did not, so the run has left the plan.
  distrust();
  if (plan_ != nullptr) log_release(number);
}

void PlannedRun::log_release(std::uint32_t number) noexcept {
  if (log_lost_) return;
  try {
    log_.releases.push_back(number);
    log_.requests[number].released_at = static_cast<std::uint32_t>(log_.requests.size());
    log_.requests[number].kept = false;
  } catch (const std::bad_alloc&) {
    log_lost_ = true;
  }
}

bool PlannedRun::is_free(std::uint64_t begin, std::uint64_t end) const noexcept {
  // Live slots do not overlap, so only the last one that begins before `end` can reach into the range.
  const auto after = std::lower_bound(live_.begin(), live_.end(), end,
                                      [](const LiveSlot& s, std::uint64_t wanted) { return s.begin < wanted; });
  return after == live_.begin() || std::prev(after)->end <= begin;
}

std::uint64_t PlannedRun::size_at(std::uint64_t offset) const noexcept {
  if (exact_) {
    // The last thing that happened at this offset says what is there.
    for (const Step* step = cursor_; step != plan_->steps.data(); --step)
      if (step[-1].offset == offset) return step[-1].bytes;
    return 0;
  }
  const auto at = std::lower_bound(live_.begin(), live_.end(), offset,
                                   [](const LiveSlot& s, std::uint64_t wanted) { return s.begin < wanted; });
  return at != live_.end() && at->begin == offset ? at->end - at->begin : 0;
}

ReplayTrace PlannedRun::take_log() noexcept {
  if (log_lost_) return {};
  return std::exchange(log_, {});
}

void PlannedRun::adopt_log_numbers(const ReplayPlan* plan) noexcept {
  for (LiveSlot& slot : live_) {
    // Slots of earlier runs have no number in the log: nobody's from now on.
    slot.plan = slot.number == kNoRequest ? nullptr : plan;
    slot.request = slot.number;
  }
}

void PlannedRun::replace_plan(const ReplayPlan* old, const ReplayPlan* replacement) noexcept {
  for (LiveSlot& slot : live_)
    if (slot.plan == old) slot.plan = replacement;
}

std::vector<LiveSlot> PlannedRun::take_live() noexcept {
  return std::exchange(live_, {});
}

}  // namespace berth::internal::replay
