#include "berth/memory/residency.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "memory/keep_alive.h"

namespace berth {

using namespace internal;

bool residency_allowed() noexcept {
  const char* setting = std::getenv("BERTH_RESIDENCY");
  return setting == nullptr || std::strcmp(setting, "0") != 0;
}

Residency::Residency() = default;

Residency::~Residency() = default;

void Residency::keep_alive(std::chrono::milliseconds interval) {
  const MutexLock lock(keep_alive_mutex_);
  keep_alive_.reset();
  if (interval.count() > 0) keep_alive_ = std::make_unique<KeepAlive>(*this, interval);
}

// --- Adding and removing ---

// Each pending member stores its index in the list, so removing it takes constant time: any number of add and remove
// pairs between two submits grows nothing.
void Residency::list(Member& member) {
  member.pending_at = pending_.size();
  pending_.push_back(&member);
  member.state = State::kPending;
}

void Residency::unlist(Member& member) noexcept {
  pending_[member.pending_at] = pending_.back();
  pending_[member.pending_at]->pending_at = member.pending_at;
  pending_.pop_back();
}

// Removes the member from the counters and the list of its present state.
void Residency::withdraw(Member& member) noexcept {
  switch (member.state) {
    case State::kPending: unlist(member); break;
    case State::kInPlace: resident_ -= member.block.bytes; break;
    case State::kRefused: --refused_; break;
    case State::kOverBudget: --over_budget_; break;
  }
}

void Residency::add(const Block& block, int priority) noexcept {
  if (block.bytes == 0) return;
  try {
    const MutexLock lock(mutex_);
    if (const auto found = members_.find(block.handle); found != members_.end()) {
      ++found->second.holds;
      return;
    }
    // Capacity is reserved before the member is created, so that a failed allocation leaves both unchanged.
    if (pending_.size() == pending_.capacity()) pending_.reserve(2 * pending_.size() + 16);
    Member& member = members_[block.handle];
    member.block = block;
    member.priority = priority;
    member.used = ++clock_;
    list(member);
    wanted_ += block.bytes;
    ++added_;
    marked_ = true;
    dirty_.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // No memory to store the member: the block is used without residency, which is only advice.
  }
}

void Residency::remove(const Block& block) noexcept {
  if (block.bytes == 0) return;
  const MutexLock lock(mutex_);
  const auto found = members_.find(block.handle);
  if (found == members_.end()) return;
  Member& member = found->second;
  if (--member.holds > 0) return;
  room_made_ = room_made_ || member.state == State::kInPlace;
  withdraw(member);
  if (member.given) take(member.block);
  wanted_ -= member.block.bytes;
  members_.erase(found);
  ++removed_;
  marked_ = true;
  dirty_.store(true, std::memory_order_release);
}

void Residency::touch(const Block& block) noexcept {
  if (!has_budget_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(mutex_);
  const auto found = members_.find(block.handle);
  if (found == members_.end()) return;
  found->second.used = ++clock_;
  if (found->second.state == State::kOverBudget) dirty_.store(true, std::memory_order_release);
}

void Residency::set_priority(const Block& block, int priority) noexcept {
  const MutexLock lock(mutex_);
  const auto found = members_.find(block.handle);
  if (found == members_.end() || found->second.priority == priority) return;
  found->second.priority = priority;
  if (budget_ > 0) dirty_.store(true, std::memory_order_release);
}

void Residency::set_budget(std::size_t bytes, DropCallback before_drop) {
  const MutexLock lock(mutex_);
  budget_ = bytes;
  before_drop_ = std::move(before_drop);
  has_budget_.store(bytes > 0, std::memory_order_relaxed);
  dirty_.store(true, std::memory_order_release);
}

// --- The commit ---

Residency::Choice Residency::choose() {
  Choice choice;
  const bool all_fit = budget_ == 0 || wanted_ <= budget_;
  if (all_fit && over_budget_ == 0) return choice;
  std::vector<Member*> order;
  order.reserve(members_.size());
  for (auto& [handle, member] : members_) order.push_back(&member);
  std::sort(order.begin(), order.end(), [](const Member* a, const Member* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->used > b->used;
  });
  std::size_t kept = 0;
  for (Member* member : order) {
    const bool fits = all_fit || member->block.bytes <= budget_ - kept;
    if (fits) kept += member->block.bytes;
    const bool is_out = member->state == State::kOverBudget;
    if (fits && is_out) choice.back.push_back(member);
    if (!fits && !is_out) choice.out.push_back(member);
  }
  return choice;
}

Result<void> Residency::commit() {
  if (!active_.load(std::memory_order_relaxed)) active_.store(true, std::memory_order_relaxed);
  if (!has_pending()) return {};
  std::uint64_t round = 0;  // tells this call from others
  while (true) {
    // The callback may release buffers, which calls remove(). It therefore runs without the lock, and the set may
    // change meanwhile: blocks that are chosen only then are announced in their turn.
    DropCallback callback;
    std::vector<Block> unannounced;
    {
      const MutexLock lock(mutex_);
      if (!has_pending()) return {};
      if (round == 0) round = ++rounds_;
      const Choice choice = choose();
      if (before_drop_)
        for (Member* member : choice.out)
          if (std::exchange(member->announced, round) != round) unannounced.push_back(member->block);
      if (unannounced.empty()) return carry_out(choice);
      callback = before_drop_;
    }
    callback(unannounced);
  }
}

Result<void> Residency::carry_out(const Choice& choice) {
  pending_.reserve(pending_.size() + choice.back.size() + refused_);
  for (Member* member : choice.out) {
    withdraw(*member);
    if (member->given) take(member->block);
    member->given = false;
    member->state = State::kOverBudget;
    ++over_budget_;
  }
  for (Member* member : choice.back) {
    withdraw(*member);
    list(*member);
  }
  // Members that did not fit before may fit now.
  if (room_made_ && refused_ > 0)
    for (auto& [handle, member] : members_)
      if (member.state == State::kRefused) {
        withdraw(member);
        list(member);
      }

  std::vector<Member*> fresh = pending_;
  std::sort(fresh.begin(), fresh.end(), [](const Member* a, const Member* b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->block.bytes != b->block.bytes ? a->block.bytes > b->block.bytes : a->used < b->used;
  });
  std::vector<Block> blocks;
  blocks.reserve(fresh.size());
  for (const Member* member : fresh) blocks.push_back(member->block);
  std::vector<Refused> refused;
  auto done = blocks.empty() ? Result<void>() : put(blocks, refused);
  if (done)
    for (Member* member : fresh) member->given = true;
  if (done) done = flush();
  if (!done) return done;
  for (Member* member : fresh) {
    withdraw(*member);
    member->state = State::kInPlace;
    resident_ += member->block.bytes;
  }
  for (Refused& one : refused) {
    Member& member = *fresh[one.index];
    withdraw(member);
    member.state = State::kRefused;
    member.refusal = std::move(one.why);
    ++refused_;
  }
  if (marked_ || !choice.out.empty() || !choice.back.empty()) ++commits_;
  marked_ = room_made_ = false;
  // Not earlier: another thread would assume that members in progress are already resident.
  dirty_.store(false, std::memory_order_release);
  return {};
}

void Residency::renew() noexcept {
  try {
    const MutexLock lock(mutex_);
    std::vector<Block> given;
    given.reserve(members_.size());
    for (const auto& [handle, member] : members_)
      if (member.given) given.push_back(member.block);
    do_renew(given);
    ++renewals_;
  } catch (const std::bad_alloc&) {
    // Renewal is only advice, so a failure is ignored.
  }
}

// --- Counters and report ---

ResidencyCounters Residency::counters() const {
  const MutexLock lock(mutex_);
  return {added_, removed_, commits_, renewals_, members_.size()};
}

ResidencyReport Residency::report() const {
  const MutexLock lock(mutex_);
  ResidencyReport report{.resident_bytes = resident_, .left = {}};
  if (refused_ == 0 && over_budget_ == 0) return report;
  for (const auto& [handle, member] : members_) {
    const bool over_budget = member.state == State::kOverBudget;
    if (over_budget || member.state == State::kRefused)
      report.left.push_back(
          {member.block.label, member.block.bytes, over_budget ? "the residency budget is full" : member.refusal});
  }
  std::sort(report.left.begin(), report.left.end(), [](const auto& a, const auto& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.label.text() < b.label.text();
  });
  return report;
}

}  // namespace berth
