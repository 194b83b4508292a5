// Which memory must be in place when work runs. Allocations are added and the last drop removes them; both
// only mark the set. Queue::submit commits it once, before the work goes out, and only if something is
// pending. One set a device. Any thread may call.
#pragma once

#include <atomic>
#include <cstdint>

#include "berth/block.h"
#include "berth/result.h"

namespace berth {

struct ResidencyCounters {
  std::uint64_t added = 0;
  std::uint64_t removed = 0;
  std::uint64_t commits = 0;
};

class Residency {
 public:
  virtual ~Residency() = default;

  void add(const Block& block) noexcept;
  void remove(const Block& block) noexcept;

  // Brings the device's set up to date if something is pending. Called by Queue::submit.
  Result<void> commit();

  ResidencyCounters counters() const noexcept;

 protected:
  // The backend's part: mark now, make real in do_commit.
  virtual void do_add(const Block& block) noexcept = 0;
  virtual void do_remove(const Block& block) noexcept = 0;
  virtual Result<void> do_commit() = 0;

 private:
  std::atomic<bool> pending_{false};
  std::atomic<std::uint64_t> added_{0}, removed_{0}, commits_{0};
};

}  // namespace berth
