// Host memory in place: faulted in by one call a range and locked against paging, as far as the lock limit goes. What
// could not be locked is faulted in all the same. Blocks smaller than a mapping share pages with others, so they are
// faulted in and never locked: unlocking one would unlock its neighbours.
#pragma once

#include "berth/memory/residency.h"

namespace berth::cpu {

class CpuResidency final : public Residency {
 protected:
  Result<void> put(std::span<const Block> blocks, std::vector<Refused>& refused) override;
  void take(const Block& block) noexcept override;
  void do_renew(std::span<const Block> given) noexcept override;
};

}  // namespace berth::cpu
