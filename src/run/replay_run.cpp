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
  smaller_.reserve(n);
  log_.requests.reserve(2 * n);
  log_.releases.reserve(2 * n);
}

void PlannedRun::begin(const ReplayPlan& plan) noexcept {
  plan_ = &plan;
  cursor_ = plan.steps.data();
  steps_end_ = cursor_ + plan.steps.size();
  exact_ = true;
  smaller_.clear();
  for (LiveSlot& slot : live_) slot.number = kNoRequest;
  if (!live_.empty()) distrust();
}

void PlannedRun::end(bool with_log) noexcept {
  if (exact_ && cursor_ == steps_end_ && plan_->leaves_none && !with_log)
    exact_ = false;  // all as planned and nothing live: there is nothing to write down
  else if (plan_ != nullptr)
    distrust();
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
  for (const auto& [request, bytes] : smaller_) log_.requests[request].bytes = bytes;
  for (std::uint32_t i = 0; i < served_.size(); ++i) {
    if (served_[i] != 1 || plan.offsets[i] == kNoOffset) continue;
    live_.push_back({plan.offsets[i], plan.offsets[i] + plan.trace.requests[i].bytes, plan.trace_id, i, i});
  }
  std::sort(live_.begin(), live_.end(), [](const LiveSlot& a, const LiveSlot& b) { return a.begin < b.begin; });
}

void PlannedRun::note_smaller(std::uint32_t request, std::uint64_t bytes) noexcept {
  smaller_.emplace_back(request, bytes);  // reserve() made room for every request of the plan
}

std::uint32_t PlannedRun::find_in_order(std::uint64_t bytes, std::uint64_t alignment,
                                        std::uint32_t tries) const noexcept {
  for (const Step* step = cursor_; step != steps_end_ && tries > 0; ++step) {
    if (step->bytes == 0 || served_[step->request] != 0) continue;
    --tries;
    if (bytes < step->at_least || bytes > step->bytes || alignment > step->alignment) continue;
    if (step->offset == kNoOffset || is_free(step->offset, step->offset + bytes)) return step->request;
  }
  return kNoRequest;
}

std::uint32_t PlannedRun::find_by_size(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  const SizeClass* size_class = plan_->find_class(bytes);
  if (size_class == nullptr) return kNoRequest;
  std::uint32_t& next = class_next_[static_cast<std::size_t>(size_class - plan_->classes.data())];
  while (next != size_class->end && served_[plan_->by_size[next]] != 0) ++next;
  std::uint32_t tries = 0;
  for (std::uint32_t i = next; i != size_class->end && tries < kMaxTries; ++i) {
    const std::uint32_t request = plan_->by_size[i];
    if (served_[request] != 0 || alignment > plan_->trace.requests[request].alignment) continue;
    ++tries;
    const std::uint64_t offset = plan_->offsets[request];
    if (offset == kNoOffset || is_free(offset, offset + bytes)) return request;
  }
  return kNoRequest;
}

PlannedRun::Served PlannedRun::request_checked(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  distrust();
  Served served;
  // A smaller request in the place of a predicted one is the next one, or one of those after it if the next was not
  // predicted rightly and is never made.
  std::uint32_t found = plan_->predicted ? find_in_order(bytes, alignment, 1) : kNoRequest;
  if (found == kNoRequest) found = find_by_size(bytes, alignment);
  if (found == kNoRequest && plan_->predicted) found = find_in_order(bytes, alignment, kMaxTries);
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
  const LiveSlot slot{served.offset, served.offset + bytes, plan_->trace_id, found, served.number};
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
    for (const Step* step = cursor_; step != plan_->steps.data(); --step) {
      if (step[-1].offset != offset) continue;
      for (const auto& [request, bytes] : smaller_)
        if (step[-1].bytes != 0 && request == step[-1].request) return bytes;
      return step[-1].bytes;
    }
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

void PlannedRun::adopt_log_numbers(std::uint64_t trace) noexcept {
  for (LiveSlot& slot : live_) {
    if (slot.number == kNoRequest) continue;  // of an earlier run
    slot.trace = trace;
    slot.request = slot.number;
  }
}

std::vector<LiveSlot> PlannedRun::take_live() noexcept {
  return std::exchange(live_, {});
}

}  // namespace berth::internal::replay
