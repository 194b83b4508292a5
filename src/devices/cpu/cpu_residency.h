// Residency on CPU: memory is faulted in with one call per range and locked, up to the lock limit. Memory that cannot
// be locked is still faulted in. Blocks smaller than a mapping share pages with others, so they are faulted in but
// never locked: unlocking one would unlock its neighbours.
#pragma once

#include "berth/memory/residency.h"

namespace berth::internal::cpu {

class CpuResidency final : public Residency {
 protected:
  Result<void> put(std::span<const Block> blocks, std::vector<Refused>& refused) override;
  void take(const Block& block) noexcept override;
  void do_renew(std::span<const Block> given) noexcept override;
};

}  // namespace berth::internal::cpu
