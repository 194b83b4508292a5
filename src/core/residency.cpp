#include "berth/residency.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/try.h"

namespace berth {

bool residency_allowed() noexcept {
  const char* setting = std::getenv("BERTH_RESIDENCY");
  return setting == nullptr || std::strcmp(setting, "0") != 0;
}

void Residency::add(const Block& block, int priority) noexcept {
  if (block.bytes == 0) return;
  try {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = members_.try_emplace(block.handle, Member{block, priority, State::kPending, ++clock_});
    if (!fresh) return;
    // Forget handles that came and went, so that endless pairs between two submits do not grow the list.
    if (pending_.size() >= 64 && pending_.size() >= 2 * members_.size())
      std::erase_if(pending_, [&](std::uint64_t handle) {
        const auto found = members_.find(handle);
        return found == members_.end() || found->second.state != State::kPending;
      });
    pending_.push_back(block.handle);
    ++added_;
    dirty_.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // Without memory to remember it by, the block is used as it is: residency is advice.
  }
}

void Residency::remove(const Block& block) noexcept {
  if (block.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = members_.find(block.handle);
  if (found == members_.end()) return;
  if (found->second.state == State::kInPlace) {
    take(found->second.block);
    report_.resident_bytes -= found->second.block.bytes;
  }
  members_.erase(found);
  ++removed_;
  dirty_.store(true, std::memory_order_release);
}

void Residency::touch(const Block& block) noexcept {
  if (!has_budget_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = members_.find(block.handle); found != members_.end()) found->second.used = ++clock_;
}

void Residency::set_budget(std::size_t bytes, DropCallback before_drop) {
  const std::lock_guard lock(mutex_);
  budget_ = bytes;
  before_drop_ = std::move(before_drop);
  has_budget_.store(bytes > 0, std::memory_order_relaxed);
  // What was left out before may fit now.
  for (auto& [handle, member] : members_)
    if (member.state == State::kLeft) {
      member.state = State::kPending;
      pending_.push_back(handle);
    }
  dirty_.store(true, std::memory_order_release);
}

// The members to give up so that the rest fits the budget.
std::vector<Residency::Member*> Residency::choose_drops() {
  std::size_t wanted = 0;
  std::vector<Member*> candidates;
  for (auto& [handle, member] : members_) {
    if (member.state == State::kLeft) continue;
    wanted += member.block.bytes;
    candidates.push_back(&member);
  }
  std::vector<Member*> drops;
  if (budget_ == 0 || wanted <= budget_) return drops;
  std::sort(candidates.begin(), candidates.end(), [](const Member* a, const Member* b) {
    return a->priority != b->priority ? a->priority < b->priority : a->used < b->used;
  });
  for (Member* member : candidates) {
    if (wanted <= budget_) break;
    wanted -= member->block.bytes;
    drops.push_back(member);
  }
  return drops;
}

Result<void> Residency::commit() {
  if (!active_.load(std::memory_order_relaxed)) active_.store(true, std::memory_order_relaxed);
  if (!dirty_.load(std::memory_order_acquire)) return {};
  // The callback may drop buffers, which comes back here as remove(): it is called without the lock.
  DropCallback callback;
  std::vector<Block> told;
  {
    const std::lock_guard lock(mutex_);
    if (before_drop_) {
      for (const Member* member : choose_drops()) told.push_back(member->block);
      callback = before_drop_;
    }
  }
  if (!told.empty()) callback(told);

  const std::lock_guard lock(mutex_);
  if (!dirty_.exchange(false, std::memory_order_acq_rel)) return {};
  std::vector<ResidencyReport::Left> left;
  for (Member* member : choose_drops()) {
    if (member->state == State::kInPlace) {
      take(member->block);
      report_.resident_bytes -= member->block.bytes;
    }
    member->state = State::kLeft;
    left.push_back({Name::from_id(member->block.label), member->block.bytes, "the residency budget is full"});
  }

  std::vector<Member*> fresh;
  for (const std::uint64_t handle : pending_)
    if (const auto found = members_.find(handle); found != members_.end() && found->second.state == State::kPending)
      fresh.push_back(&found->second);
  std::sort(fresh.begin(), fresh.end(), [](const Member* a, const Member* b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->block.bytes != b->block.bytes ? a->block.bytes > b->block.bytes : a < b;
  });
  // A handle that came, went and came again is listed twice.
  fresh.erase(std::unique(fresh.begin(), fresh.end()), fresh.end());
  std::vector<Block> blocks;
  blocks.reserve(fresh.size());
  for (const Member* member : fresh) blocks.push_back(member->block);
  auto done = blocks.empty() ? Result<void>() : put(blocks, left);
  if (done) done = flush();
  if (!done) {
    dirty_.store(true, std::memory_order_release);
    return done;
  }
  for (Member* member : fresh) {
    member->state = State::kInPlace;
    report_.resident_bytes += member->block.bytes;
  }
  pending_.clear();
  report_.left = std::move(left);
  ++commits_;
  return {};
}

void Residency::renew() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    std::vector<Block> in_place;
    in_place.reserve(members_.size());
    for (const auto& [handle, member] : members_)
      if (member.state == State::kInPlace) in_place.push_back(member.block);
    do_renew(in_place);
    ++renewals_;
  } catch (const std::bad_alloc&) {
    // It was only advice.
  }
}

ResidencyCounters Residency::counters() const {
  const std::lock_guard lock(mutex_);
  return {added_, removed_, commits_, renewals_, members_.size()};
}

ResidencyReport Residency::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace berth
