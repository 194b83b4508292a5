#include "berth/memory/residency.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
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

// The members and what is to be done with them. The backend's put() and take() run with its lock held.
struct Residency::Set {
  enum class State : std::uint8_t { kPending, kInPlace, kRefused, kOverBudget };
  struct Member {
    Block block;
    int priority = 0;
    State state = State::kPending;
    bool given = false;  // passed to put(), and not to take() since
    std::uint32_t holds = 1;
    std::size_t pending_at = 0;  // index in pending, while it is pending
    std::uint64_t used = 0;
    std::uint64_t announced = 0;  // the last commit that told the callback about it
    std::string refusal{};        // the reason, while it is refused
  };
  // The effect of a budget: members to evict or keep out, and members that may become resident again.
  struct Choice {
    std::vector<Member*> out, back;
  };

  Choice choose() BERTH_REQUIRES(mutex);
  Result<void> carry_out(Residency& device, const Choice& choice) BERTH_REQUIRES(mutex);
  void list(Member& member) BERTH_REQUIRES(mutex);
  void unlist(Member& member) noexcept BERTH_REQUIRES(mutex);
  void withdraw(Member& member) noexcept BERTH_REQUIRES(mutex);

  mutable Mutex mutex;
  std::unordered_map<std::uint64_t, Member> members BERTH_GUARDED_BY(mutex);  // by handle
  std::vector<Member*> pending BERTH_GUARDED_BY(mutex);
  std::size_t wanted BERTH_GUARDED_BY(mutex) = 0;       // bytes of all members
  std::size_t resident BERTH_GUARDED_BY(mutex) = 0;     // bytes of resident members
  std::size_t over_budget BERTH_GUARDED_BY(mutex) = 0;  // members that the budget evicted
  std::size_t refused BERTH_GUARDED_BY(mutex) = 0;      // members that put() refused
  std::size_t budget BERTH_GUARDED_BY(mutex) = 0;
  DropCallback before_drop BERTH_GUARDED_BY(mutex);
  std::uint64_t clock BERTH_GUARDED_BY(mutex) = 0;
  std::uint64_t added BERTH_GUARDED_BY(mutex) = 0;
  std::uint64_t removed BERTH_GUARDED_BY(mutex) = 0;
  std::uint64_t commits BERTH_GUARDED_BY(mutex) = 0;
  std::uint64_t rounds BERTH_GUARDED_BY(mutex) = 0;  // calls of commit() that had something to do
  std::uint64_t renewals BERTH_GUARDED_BY(mutex) = 0;
  bool marked BERTH_GUARDED_BY(mutex) = false;     // a block was added or removed since the last commit
  bool room_made BERTH_GUARDED_BY(mutex) = false;  // a resident block was removed since the last commit
  Mutex keep_alive_mutex;
  std::unique_ptr<KeepAlive> keep_alive BERTH_GUARDED_BY(keep_alive_mutex);
};

Residency::Residency() : set_(std::make_unique<Set>()) {}

Residency::~Residency() {
  keep_alive({});
}

void Residency::keep_alive(std::chrono::milliseconds interval) {
  const MutexLock lock(set_->keep_alive_mutex);
  set_->keep_alive.reset();
  if (interval.count() > 0) set_->keep_alive = std::make_unique<KeepAlive>(*this, interval);
}

// --- Adding and removing ---

// Each pending member stores its index in the list, so removing it takes constant time: any number of add and remove
// pairs between two submits grows nothing.
void Residency::Set::list(Member& member) {
  member.pending_at = pending.size();
  pending.push_back(&member);
  member.state = State::kPending;
}

void Residency::Set::unlist(Member& member) noexcept {
  pending[member.pending_at] = pending.back();
  pending[member.pending_at]->pending_at = member.pending_at;
  pending.pop_back();
}

// Removes the member from the counters and the list of its present state.
void Residency::Set::withdraw(Member& member) noexcept {
  switch (member.state) {
    case State::kPending: unlist(member); break;
    case State::kInPlace: resident -= member.block.bytes; break;
    case State::kRefused: --refused; break;
    case State::kOverBudget: --over_budget; break;
  }
}

void Residency::add(const Block& block, int priority) noexcept {
  Set& set = *set_;
  if (block.bytes == 0) return;
  try {
    const MutexLock lock(set.mutex);
    if (const auto found = set.members.find(block.handle); found != set.members.end()) {
      ++found->second.holds;
      return;
    }
    // Capacity is reserved before the member is created, so that a failed allocation leaves both unchanged.
    if (set.pending.size() == set.pending.capacity()) set.pending.reserve(2 * set.pending.size() + 16);
    Set::Member& member = set.members[block.handle];
    member.block = block;
    member.priority = priority;
    member.used = ++set.clock;
    set.list(member);
    set.wanted += block.bytes;
    ++set.added;
    set.marked = true;
    dirty_.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // No memory to store the member: the block is used without residency, which is only advice.
  }
}

void Residency::remove(const Block& block) noexcept {
  Set& set = *set_;
  if (block.bytes == 0) return;
  const MutexLock lock(set.mutex);
  const auto found = set.members.find(block.handle);
  if (found == set.members.end()) return;
  Set::Member& member = found->second;
  if (--member.holds > 0) return;
  set.room_made = set.room_made || member.state == Set::State::kInPlace;
  set.withdraw(member);
  if (member.given) take(member.block);
  set.wanted -= member.block.bytes;
  set.members.erase(found);
  ++set.removed;
  set.marked = true;
  dirty_.store(true, std::memory_order_release);
}

void Residency::touch(const Block& block) noexcept {
  Set& set = *set_;
  if (!has_budget_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(set.mutex);
  const auto found = set.members.find(block.handle);
  if (found == set.members.end()) return;
  found->second.used = ++set.clock;
  if (found->second.state == Set::State::kOverBudget) dirty_.store(true, std::memory_order_release);
}

void Residency::set_priority(const Block& block, int priority) noexcept {
  Set& set = *set_;
  const MutexLock lock(set.mutex);
  const auto found = set.members.find(block.handle);
  if (found == set.members.end() || found->second.priority == priority) return;
  found->second.priority = priority;
  if (set.budget > 0) dirty_.store(true, std::memory_order_release);
}

void Residency::set_budget(std::size_t bytes, DropCallback before_drop) {
  Set& set = *set_;
  const MutexLock lock(set.mutex);
  set.budget = bytes;
  set.before_drop = std::move(before_drop);
  has_budget_.store(bytes > 0, std::memory_order_relaxed);
  dirty_.store(true, std::memory_order_release);
}

// --- The commit ---

Residency::Set::Choice Residency::Set::choose() {
  Choice choice;
  const bool all_fit = budget == 0 || wanted <= budget;
  if (all_fit && over_budget == 0) return choice;
  std::vector<Member*> order;
  order.reserve(members.size());
  for (auto& [handle, member] : members) order.push_back(&member);
  std::sort(order.begin(), order.end(), [](const Member* a, const Member* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->used > b->used;
  });
  std::size_t kept = 0;
  for (Member* member : order) {
    const bool fits = all_fit || member->block.bytes <= budget - kept;
    if (fits) kept += member->block.bytes;
    const bool is_out = member->state == State::kOverBudget;
    if (fits && is_out) choice.back.push_back(member);
    if (!fits && !is_out) choice.out.push_back(member);
  }
  return choice;
}

Result<void> Residency::commit() {
  Set& set = *set_;
  if (!active_.load(std::memory_order_relaxed)) active_.store(true, std::memory_order_relaxed);
  if (!has_pending()) return {};
  std::uint64_t round = 0;  // tells this call from others
  while (true) {
    // The callback may release buffers, which calls remove(). It therefore runs without the lock, and the set may
    // change meanwhile: blocks that are chosen only then are announced in their turn.
    DropCallback callback;
    std::vector<Block> unannounced;
    {
      const MutexLock lock(set.mutex);
      if (!has_pending()) return {};
      if (round == 0) round = ++set.rounds;
      const Set::Choice choice = set.choose();
      if (set.before_drop)
        for (Set::Member* member : choice.out)
          if (std::exchange(member->announced, round) != round) unannounced.push_back(member->block);
      if (unannounced.empty()) return set.carry_out(*this, choice);
      callback = set.before_drop;
    }
    callback(unannounced);
  }
}

Result<void> Residency::Set::carry_out(Residency& device, const Choice& choice) {
  pending.reserve(pending.size() + choice.back.size() + refused);
  for (Member* member : choice.out) {
    withdraw(*member);
    if (member->given) device.take(member->block);
    member->given = false;
    member->state = State::kOverBudget;
    ++over_budget;
  }
  for (Member* member : choice.back) {
    withdraw(*member);
    list(*member);
  }
  // Members that did not fit before may fit now.
  if (room_made && refused > 0)
    for (auto& [handle, member] : members)
      if (member.state == State::kRefused) {
        withdraw(member);
        list(member);
      }

  std::vector<Member*> fresh = pending;
  std::sort(fresh.begin(), fresh.end(), [](const Member* a, const Member* b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->block.bytes != b->block.bytes ? a->block.bytes > b->block.bytes : a->used < b->used;
  });
  std::vector<Block> blocks;
  blocks.reserve(fresh.size());
  for (const Member* member : fresh) blocks.push_back(member->block);
  std::vector<Refused> not_placed;
  auto done = blocks.empty() ? Result<void>() : device.put(blocks, not_placed);
  if (done)
    for (Member* member : fresh) member->given = true;
  if (done) done = device.flush();
  if (!done) return done;
  for (Member* member : fresh) {
    withdraw(*member);
    member->state = State::kInPlace;
    resident += member->block.bytes;
  }
  for (Refused& one : not_placed) {
    Member& member = *fresh[one.index];
    withdraw(member);
    member.state = State::kRefused;
    member.refusal = std::move(one.why);
    ++refused;
  }
  if (marked || !choice.out.empty() || !choice.back.empty()) ++commits;
  marked = room_made = false;
  // Not earlier: another thread would assume that members in progress are already resident.
  device.dirty_.store(false, std::memory_order_release);
  return {};
}

void Residency::renew() noexcept {
  Set& set = *set_;
  try {
    const MutexLock lock(set.mutex);
    std::vector<Block> given;
    given.reserve(set.members.size());
    for (const auto& [handle, member] : set.members)
      if (member.given) given.push_back(member.block);
    do_renew(given);
    ++set.renewals;
  } catch (const std::bad_alloc&) {
    // Renewal is only advice, so a failure is ignored.
  }
}

// --- Counters and report ---

ResidencyCounters Residency::counters() const {
  Set& set = *set_;
  const MutexLock lock(set.mutex);
  return {set.added, set.removed, set.commits, set.renewals, set.members.size()};
}

ResidencyReport Residency::report() const {
  Set& set = *set_;
  const MutexLock lock(set.mutex);
  ResidencyReport report{.resident_bytes = set.resident, .left = {}};
  if (set.refused == 0 && set.over_budget == 0) return report;
  for (const auto& [handle, member] : set.members) {
    const bool over_budget = member.state == Set::State::kOverBudget;
    if (over_budget || member.state == Set::State::kRefused)
      report.left.push_back(
          {member.block.label, member.block.bytes, over_budget ? "the residency budget is full" : member.refusal});
  }
  std::sort(report.left.begin(), report.left.end(), [](const auto& a, const auto& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.label.text() < b.label.text();
  });
  return report;
}

}  // namespace berth
