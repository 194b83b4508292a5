// The set of blocks that must be resident when work runs. Allocating a block adds it and freeing it removes it; both
// only mark the set. Queue::submit commits the set once, before the work starts, and only if something is pending.
// Copies and views of a buffer do not add it again. Each device owns one set, which lives as long as the device. Any
// thread may call.
//
//   allocate x 100, free x 100 ... submit      100 + 100 marks, 1 commit
//   submit                                     nothing pending: 0 commits
//
// The device defines what "resident" means: METAL maintains a Metal residency set; CPU faults memory in and locks it;
// CUDA advises and prefetches managed memory; WEBGPU only counts. BERTH_RESIDENCY=0 in the environment disables
// residency on all devices.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
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
std::string to_string(const ResidencyCounters& counters);

// The state after the last commit: what is resident and what is not.
struct ResidencyReport {
  struct Left {
    Name label;
    std::size_t bytes = 0;
    std::string why;
  };
  std::size_t resident_bytes = 0;
  std::vector<Left> left;  // members that are not resident, with the reason, largest first; empty if all fit
};

class Residency {
 public:
  Residency();
  virtual ~Residency();

  // Adds or removes a block. Adding a member again only increments the number of times it must be removed. A block that
  // is added and removed between two commits causes no driver call. Constant time; space proportional to the members.
  void add(const Block& block, int priority = 0) noexcept;
  void remove(const Block& block) noexcept;

  // Updates the device's set if something is pending. Called by Queue::submit. Blocks that do not fit are listed in
  // report(); this is not an error. kDriver or kDeviceLost if the driver fails; the changes then stay pending.
  // O(p log p) for p pending blocks, independent of the number of members; O(members log members) while a budget is too
  // small for all of them, or when some were refused and others have been removed.
  Result<void> commit();
  // True if commit() has something to do, or another thread is executing it.
  bool has_pending() const noexcept { return dirty_.load(std::memory_order_acquire); }

  // Records a use, which determines the order in which a budget evicts blocks. A block that was evicted by the budget
  // becomes resident again when it is used.
  void touch(const Block& block) noexcept;

  // Keeps at most `bytes` resident; 0 removes the budget. Blocks with the lowest priority are evicted first, then the
  // least recently used. `before_drop` is called first, for every block that is then evicted; it may release buffers,
  // but must not use a queue, because a queue may be recording. Evicted blocks become resident again when there is
  // room.
  using DropCallback = std::function<void(std::span<const Block>)>;
  void set_budget(std::size_t bytes, DropCallback before_drop = {});
  // Sets the priority of a member; 0 unless add() set another. Members with a higher priority stay resident longer.
  void set_priority(const Block& block, int priority) noexcept;

  // Makes all members resident again, because operating systems evict memory that no work has used for a while. Does
  // not change the membership. O(members).
  void renew() noexcept;
  // Calls renew() whenever nothing was submitted for `interval`, so that the first work after a pause finds its memory
  // resident. One thread wakes once per interval. Zero stops it, as does the destruction of the device.
  void keep_alive(std::chrono::milliseconds interval);
  // True if commit() was called, with or without something pending, since the previous call of this function.
  bool was_active() noexcept { return active_.exchange(false, std::memory_order_relaxed); }

  ResidencyCounters counters() const;
  ResidencyReport report() const;

 protected:
  // A block passed to put() that could not be made fully resident.
  struct Refused {
    std::size_t index;
    std::string why;
  };

  // Implemented by the backend. Called with the set's lock held.
  // Makes blocks resident. They are sorted by priority, then largest first. Appends blocks that cannot be made resident
  // to `refused`; this is not a failure. A refused block may be passed again after others were removed.
  virtual Result<void> put(std::span<const Block> blocks, std::vector<Refused>& refused) = 0;
  // Undoes put() for one block, refused or not.
  virtual void take(const Block& block) noexcept = 0;
  // Applies the preceding put() and take() calls on drivers that batch them. Called once per commit, after them.
  virtual Result<void> flush() { return {}; }
  // Ensures that these blocks, which were passed to put(), are still resident.
  virtual void do_renew(std::span<const Block> given) noexcept { static_cast<void>(given); }

 private:
  struct Set;

  std::atomic<bool> dirty_{false};
  std::atomic<bool> has_budget_{false};
  std::atomic<bool> active_{false};
  std::unique_ptr<Set> set_;
};

// True unless BERTH_RESIDENCY is "0" in the environment.
bool residency_allowed() noexcept;

// A residency set that only counts, for devices whose driver manages residency itself.
class CountingResidency final : public Residency {
 protected:
  Result<void> put(std::span<const Block>, std::vector<Refused>&) override { return {}; }
  void take(const Block&) noexcept override {}
};

}  // namespace berth
