#include "berth/engines/engine_memory.h"

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "engines/engine_pool.h"
#include "engines/host_pages.h"

namespace berth::engines {

using namespace internal;

namespace {

// Planning happens between two runs, where the default limit of about a second would be noticeable.
constexpr double kPlanningSeconds = 0.03;

}  // namespace

Result<EngineMemory> EngineMemory::create(EngineMemoryOptions options) {
  AllocatorPtr arena_memory = options.arena_memory, pool = options.pool;
  if (!arena_memory || !pool) {
    BERTH_TRY_ASSIGN(const DevicePtr cpu, device("CPU"));
    if (!arena_memory) {
      arena_memory = cpu;
      if (!options.replay.pages.give_back) options.replay.pages = host_pages();
    }
    if (!pool) pool = make_engine_pool(cpu);
  }
  if (!options.replay.planning.time_limit && !options.replay.planning.work_limit)
    options.replay.planning.time_limit = kPlanningSeconds;
  // In an arena, what follows a request is another one or the slack after the last.
  options.replay.arena_slack = std::max(options.replay.arena_slack, options.read_past_end);
  if (options.read_past_end != 0) pool = readable_past_end(std::move(pool), options.read_past_end);
  return EngineMemory(std::make_unique<Replay>(std::move(arena_memory), std::move(pool), std::move(options.replay)));
}

}  // namespace berth::engines
