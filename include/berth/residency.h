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
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "berth/block.h"
#include "berth/result.h"

namespace berth {

struct ResidencyCounters {
  std::uint64_t added = 0;
  std::uint64_t removed = 0;
  std::uint64_t commits = 0;
  std::uint64_t renewals = 0;
  std::size_t members = 0;  // blocks in the set, pending ones included
};

// What the last commit could and could not do.
struct ResidencyReport {
  struct Left {
    Name label;
    std::size_t bytes = 0;
    std::string why;
  };
  std::size_t resident_bytes = 0;
  std::vector<Left> left;  // blocks that are not in place, and why; empty when all fit
};

class Residency {
 public:
  virtual ~Residency() = default;

  // Marks a block as wanted or no longer wanted. A block that comes and goes between two commits costs the driver
  // nothing. Constant time; the space is that of the members.
  void add(const Block& block, int priority = 0) noexcept;
  void remove(const Block& block) noexcept;

  // Brings the device's set up to date if something is pending. Called by Queue::submit. What does not fit is told in
  // report() and never an error; Driver or DeviceLost if the driver fails, and then the marks stay pending.
  // O(p log p) for p pending blocks; O(members log members) when a budget forces a choice.
  Result<void> commit();

  // Notes a use, for the order in which a budget gives blocks up.
  void touch(const Block& block) noexcept;

  // Keeps at most `bytes` in place; 0 lifts the budget. Of what does not fit, the lowest priority goes first, then the
  // least recently used. `before_drop` is told first and may drop buffers itself.
  using DropCallback = std::function<void(std::span<const Block>)>;
  void set_budget(std::size_t bytes, DropCallback before_drop = {});

  // Asks again for everything in place: systems let go of memory that no work has used for a while. Called by
  // Device::keep_alive. Changes no membership. O(members).
  void renew() noexcept;
  // Whether commit() was called, with or without something pending, since this was asked last.
  bool was_active() noexcept { return active_.exchange(false, std::memory_order_relaxed); }

  ResidencyCounters counters() const;
  ResidencyReport report() const;

 protected:
  // The backend's part, called with the set's lock held.
  // Puts blocks in place; the order is by priority, then largest first. Appends what could not be done to
  // `left`; that is no failure.
  virtual Result<void> put(std::span<const Block> blocks, std::vector<ResidencyReport::Left>& left) = 0;
  // Takes back a block that put() was given.
  virtual void take(const Block& block) noexcept = 0;
  // Makes puts and takes real where the driver batches them. Called once a commit, after them.
  virtual Result<void> flush() { return {}; }
  // Sees to it that these, which put() was given, are still in place.
  virtual void do_renew(std::span<const Block> in_place) noexcept { static_cast<void>(in_place); }

 private:
  enum class State : std::uint8_t { kPending, kInPlace, kLeft };
  struct Member {
    Block block;
    int priority;
    State state;
    std::uint64_t used;
  };

  std::vector<Member*> choose_drops();

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Member> members_;  // by handle
  std::vector<std::uint64_t> pending_;                 // handles; those that went meanwhile are skipped
  std::size_t budget_ = 0;
  DropCallback before_drop_;
  ResidencyReport report_;
  std::uint64_t clock_ = 0;
  std::uint64_t added_ = 0, removed_ = 0, commits_ = 0, renewals_ = 0;
  std::atomic<bool> dirty_{false};
  std::atomic<bool> has_budget_{false};
  std::atomic<bool> active_{false};
};

// Whether the environment allows residency: BERTH_RESIDENCY is not "0".
bool residency_allowed() noexcept;

// Residency that only counts, for devices whose driver decides by itself.
class CountingResidency final : public Residency {
 protected:
  Result<void> put(std::span<const Block>, std::vector<ResidencyReport::Left>&) override { return {}; }
  void take(const Block&) noexcept override {}
};

}  // namespace berth
