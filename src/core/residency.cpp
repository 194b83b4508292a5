#include "berth/residency.h"

namespace berth {

void Residency::add(const Block& block) noexcept {
  do_add(block);
  added_.fetch_add(1, std::memory_order_relaxed);
  pending_.store(true, std::memory_order_release);
}

void Residency::remove(const Block& block) noexcept {
  do_remove(block);
  removed_.fetch_add(1, std::memory_order_relaxed);
  pending_.store(true, std::memory_order_release);
}

Result<void> Residency::commit() {
  if (!pending_.load(std::memory_order_acquire)) return {};
  if (!pending_.exchange(false, std::memory_order_acq_rel)) return {};
  auto committed = do_commit();
  if (committed)
    commits_.fetch_add(1, std::memory_order_relaxed);
  else
    pending_.store(true, std::memory_order_release);
  return committed;
}

ResidencyCounters Residency::counters() const noexcept {
  return {added_.load(std::memory_order_relaxed), removed_.load(std::memory_order_relaxed),
          commits_.load(std::memory_order_relaxed)};
}

}  // namespace berth
