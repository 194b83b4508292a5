// Memory of another rank that this process may access: its lease there, or an imported window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "berth/memory/kernel.h"
#include "remote/engine.h"
#include "remote/near_lease.h"
#include "remote/near_window.h"

namespace berth::internal::remote {

struct Region {
  std::uint32_t rank = 0;
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  std::uint64_t address = 0;  // in the other process
  std::size_t bytes = 0;
  Access access = Access::kReadWrite;
  bool is_window = false;
  ucx::Key key = nullptr;
  std::unique_ptr<NearWindow> near{};  // of a window whose owner is on this machine, if the kernel copies
  std::unique_ptr<NearLease> lease{};  // of a lease whose owner is on this machine, if it can be mapped
  std::byte* host = nullptr;           // the same memory in this process, then

  // Guarded by the engine's mutex.
  bool revoked = false;                // the owner closes it: nothing may start
  std::uint32_t uses = 0;              // accesses that are not covered by a flush
  std::vector<Message> revocations{};  // answered when there are none
};
using RegionPtr = std::shared_ptr<Region>;

// kDeviceLost with the rank, or kNotFound for a window that its owner closed.
Result<void> check_usable(Engine& engine, const Region& region) BERTH_REQUIRES(engine.mutex);

// Answers a revocation when nothing is in flight any more.
void answer_revocations(Engine& engine, Region& region) BERTH_REQUIRES(engine.mutex);

}  // namespace berth::internal::remote
