// Which memory must be in place when work runs. A device's allocations are added and their last drop removes them; both
// only mark the set. Queue::submit commits it once, before the work goes out, and only if something is pending. Copies
// and views of a buffer never add it again. One set a device, living as long as it. Any thread may call.
//
//   allocate x 100, drop x 100 ... submit      100 + 100 marks, 1 commit
//   submit                                     nothing pending: 0 commits
//
// What "in place" means is the device's: METAL keeps a residency set of its own, CPU faults memory in and locks it,
// CUDA advises and prefetches managed memory, WEBGPU only counts. BERTH_RESIDENCY=0 in the environment turns it off
// everywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "berth/base/result.h"
#include "berth/memory/block.h"

namespace berth {

struct ResidencyCounters {
  std::uint64_t added = 0;
  std::uint64_t removed = 0;
  std::uint64_t commits = 0;
  std::uint64_t renewals = 0;
  std::size_t members = 0;  // blocks in the set, pending ones included
};

// What is in place after the last commit, and what is not.
struct ResidencyReport {
  struct Left {
    Name label;
    std::size_t bytes = 0;
    std::string why;
  };
  std::size_t resident_bytes = 0;
  std::vector<Left> left;  // members that are not in place, largest first, and why; empty when all fit
};

class KeepAlive;

class Residency {
 public:
  Residency();
  virtual ~Residency();

  // Marks a block as wanted or no longer wanted. Adding a member again changes nothing but how often it must be
  // removed. A block that comes and goes between two commits costs the driver nothing. Constant time; the space is that
  // of the members.
  void add(const Block& block, int priority = 0) noexcept;
  void remove(const Block& block) noexcept;

  // Brings the device's set up to date if something is pending. Called by Queue::submit. What does not fit is told in
  // report() and never an error; Driver or DeviceLost if the driver fails, and then the marks stay pending.
  // O(p log p) for p pending blocks, however many members there are; O(members log members) while a budget is too small
  // for all of them, or when some were refused and others have left.
  Result<void> commit();
  // Whether commit() has something to do, or another thread's is still doing it.
  bool has_pending() const noexcept { return dirty_.load(std::memory_order_acquire); }

  // Notes a use, for the order in which a budget gives blocks up. What a budget left out comes back when it is used.
  void touch(const Block& block) noexcept;

  // Keeps at most `bytes` in place; 0 lifts the budget. Of what does not fit, the lowest priority goes first, then the
  // least recently used. `before_drop` is told first and may drop buffers itself, but use no queue: one may be
  // recording. What was left out comes back when there is room again.
  using DropCallback = std::function<void(std::span<const Block>)>;
  void set_budget(std::size_t bytes, DropCallback before_drop = {});
  // A member's priority, 0 unless add() said otherwise. The higher, the longer it stays.
  void set_priority(const Block& block, int priority) noexcept;

  // Makes all members resident again, because systems evict memory that no work has used for a while. Changes no
  // membership. O(members).
  void renew() noexcept;
  // Calls renew() whenever nothing was submitted for `interval`, so that the first work after a pause finds its memory
  // resident. One thread wakes once per interval. Zero stops it, and so does the end of the device.
  void keep_alive(std::chrono::milliseconds interval);
  // Whether commit() was called, with or without something pending, since the previous call of this function.
  bool was_active() noexcept { return active_.exchange(false, std::memory_order_relaxed); }

  ResidencyCounters counters() const;
  ResidencyReport report() const;

 protected:
  // A block of those put() was given that it could not put in place altogether.
  struct Refused {
    std::size_t index;
    std::string why;
  };

  // The backend's part, called with the set's lock held.
  // Puts blocks in place; the order is by priority, then largest first. Appends what could not be done to `refused`;
  // that is no failure. A refused block may be given again, when others have left.
  virtual Result<void> put(std::span<const Block> blocks, std::vector<Refused>& refused) = 0;
  // Takes back a block that put() was given, refused or not.
  virtual void take(const Block& block) noexcept = 0;
  // Makes puts and takes real where the driver batches them. Called once a commit, after them.
  virtual Result<void> flush() { return {}; }
  // Sees to it that these, which put() was given, are still in place.
  virtual void do_renew(std::span<const Block> given) noexcept { static_cast<void>(given); }

 private:
  enum class State : std::uint8_t { kPending, kInPlace, kRefused, kOverBudget };
  struct Member {
    Block block;
    int priority = 0;
    State state = State::kPending;
    bool given = false;  // to put(), and not taken back
    std::uint32_t holds = 1;
    std::size_t pending_at = 0;  // in pending_, while it is pending
    std::uint64_t used = 0;
    std::string refusal{};  // while it is refused
  };
  // What a budget changes: members that have to go or stay out, and those that may come back.
  struct Choice {
    std::vector<Member*> out, back;
  };

  Choice choose();
  void list(Member& member);
  void unlist(Member& member) noexcept;
  void withdraw(Member& member) noexcept;

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Member> members_;  // by handle
  std::vector<Member*> pending_;
  std::size_t wanted_ = 0;       // bytes of all members
  std::size_t resident_ = 0;     // bytes of those in place
  std::size_t over_budget_ = 0;  // members left out by the budget
  std::size_t refused_ = 0;      // members that put() refused
  std::size_t budget_ = 0;
  DropCallback before_drop_;
  std::uint64_t clock_ = 0;
  std::uint64_t added_ = 0, removed_ = 0, commits_ = 0, renewals_ = 0;
  bool marked_ = false;     // added to or removed from since the last commit
  bool room_made_ = false;  // something in place was removed since the last commit
  std::atomic<bool> dirty_{false};
  std::atomic<bool> has_budget_{false};
  std::atomic<bool> active_{false};
  std::mutex keep_alive_mutex_;
  std::unique_ptr<KeepAlive> keep_alive_;
};

// Whether the environment allows residency: BERTH_RESIDENCY is not "0".
bool residency_allowed() noexcept;

// Residency that only counts, for devices whose driver decides by itself.
class CountingResidency final : public Residency {
 protected:
  Result<void> put(std::span<const Block>, std::vector<Refused>&) override { return {}; }
  void take(const Block&) noexcept override {}
};

}  // namespace berth
