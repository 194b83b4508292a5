// The pages of arenas in host memory: faulted in with one call before a run that needs them, instead of one by one
// during it, and given back by the same mapping when they are not needed any more. Any thread may call.
#pragma once

#include <cstdint>

#include "berth/memory/allocator.h"
#include "berth/run/replay.h"

namespace berth::internal {

// For blocks of the CPU device or of an allocator with memory like that: anonymous and private to the process.
ArenaPages host_pages();

// An allocator around one of host memory whose blocks have `bytes` readable bytes after their end. kOutOfMemory for
// sizes that cannot have them.
AllocatorPtr readable_past_end(AllocatorPtr inner, std::uint64_t bytes);

}  // namespace berth::internal
