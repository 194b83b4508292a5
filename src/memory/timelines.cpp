#include "memory/timelines.h"

#include <array>
#include <memory>
#include <vector>

#include "berth/base/mutex.h"

namespace berth::internal {
namespace {

constexpr std::size_t kChunk = 256;
using Chunk = std::array<Timeline, kChunk>;

struct Timelines {
  Mutex mutex;
  std::vector<TimelineId> free BERTH_GUARDED_BY(mutex);
  std::uint32_t next BERTH_GUARDED_BY(mutex) = 1;  // 0 is TimelineId::kNone, whose timepoint is always reached
  std::array<std::atomic<Chunk*>, 65536 / kChunk> chunks{};
};

// Never destroyed: buffers with static lifetime ask it at exit.
Timelines& timelines() {
  static Timelines* const instance = new Timelines;
  return *instance;
}

}  // namespace

Timeline* find_timeline(TimelineId id) noexcept {
  if (id == TimelineId::kNone) return nullptr;
  const auto index = static_cast<std::size_t>(id);
  Chunk* chunk = timelines().chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &(*chunk)[index % kChunk];
}

void for_each_timeline(const std::function<void(Timeline&)>& visit) {
  std::uint32_t end = 0;
  {
    const MutexLock lock(timelines().mutex);
    end = timelines().next;
  }
  for (std::uint32_t id = 1; id < end; ++id)
    if (Timeline* const timeline = find_timeline(static_cast<TimelineId>(id))) visit(*timeline);
}

TimelineId take_timeline(Queue& queue) {
  Timelines& table = timelines();
  TimelineId id = TimelineId::kNone;
  {
    const MutexLock lock(table.mutex);
    if (!table.free.empty()) {
      id = table.free.back();
      table.free.pop_back();
    } else if (table.next < 65536) {
      table.free.reserve(table.next);  // so that give_timeline never allocates
      auto& chunk = table.chunks[table.next / kChunk];
      id = static_cast<TimelineId>(table.next++);
      if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Chunk, std::memory_order_release);
    } else {
      return TimelineId::kNone;
    }
  }
  Timeline* timeline = find_timeline(id);
  const MutexLock lock(timeline->mutex);
  timeline->queue = &queue;
  return id;
}

void give_timeline(TimelineId id) noexcept {
  Timeline* timeline = find_timeline(id);
  if (timeline == nullptr) return;
  {
    const MutexLock lock(timeline->mutex);
    timeline->queue = nullptr;
    while (timeline->users > 0) timeline->idle.wait(timeline->mutex);
  }
  Timelines& table = timelines();
  const MutexLock lock(table.mutex);
  table.free.push_back(id);
}

}  // namespace berth::internal
