// Copies between this process and a region of another rank. Large ones go in pieces, so that other threads get their
// turn and a slow link shows signs of life. Where neither a pointer nor the kernel reaches the region, bytes are put by
// UCX, and never fetched: over TCP it emulates a get at half the speed, so the owner is asked to put them here. Any
// thread may call. All fail with kDeviceLost or, for a closed window, kNotFound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "remote/region.h"

namespace berth::internal::remote {

// Starts to write. The bytes are in the region when a flush that is started later is done. If `reuse`, the call returns
// when the source may be reused; otherwise this is so when the ticket has nothing in flight.
Result<void> write(Engine& engine, Region& region, std::size_t offset, std::span<const std::byte> source,
                   const TicketPtr& ticket, bool reuse);

// Tells the owner of a window that one more submit has arrived, after its flush.
void arrive(Engine& engine, Region& region) BERTH_REQUIRES(engine.mutex);

// Returns when all writes of this process to these ranks have arrived. Fails with the first rank that is lost.
Result<void> flush(Engine& engine, std::span<const std::uint32_t> ranks);

// These come after all writes of this process to the rank, and are complete when they return.
Result<void> read(Engine& engine, Region& region, std::size_t offset, std::span<std::byte> target);
// With memmove semantics, between regions of one rank. The bytes do not cross the network.
Result<void> copy(Engine& engine, Region& from, std::size_t from_offset, Region& to, std::size_t to_offset,
                  std::size_t bytes);
Result<void> fill(Engine& engine, Region& region, std::size_t offset, std::size_t bytes, std::uint8_t value);

}  // namespace berth::internal::remote
