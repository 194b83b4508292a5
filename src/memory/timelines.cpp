#include "memory/timelines.h"

#include <array>
#include <memory>
#include <vector>

namespace berth {
namespace {

constexpr std::size_t kChunk = 256;
using Chunk = std::array<Line, kChunk>;

struct Lines {
  std::mutex mutex;
  std::vector<std::uint16_t> free;
  std::uint32_t next = 1;  // 0 is the line that is always reached
  std::array<std::atomic<Chunk*>, 65536 / kChunk> chunks{};
};

// Never destroyed: buffers with static lifetime ask it at exit.
Lines& lines() {
  static Lines* const instance = new Lines;
  return *instance;
}

}  // namespace

Line* find_line(std::uint16_t id) noexcept {
  if (id == 0) return nullptr;
  Chunk* chunk = lines().chunks[id / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &(*chunk)[id % kChunk];
}

std::uint16_t take_line(Queue& queue) {
  Lines& table = lines();
  std::uint16_t id = 0;
  {
    const std::lock_guard lock(table.mutex);
    if (!table.free.empty()) {
      id = table.free.back();
      table.free.pop_back();
    } else if (table.next < 65536) {
      table.free.reserve(table.next);  // so that give_line never allocates
      id = static_cast<std::uint16_t>(table.next++);
      auto& chunk = table.chunks[id / kChunk];
      if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Chunk, std::memory_order_release);
    } else {
      return 0;
    }
  }
  Line* line = find_line(id);
  const std::lock_guard lock(line->mutex);
  line->queue = &queue;
  return id;
}

void give_line(std::uint16_t id) noexcept {
  Line* line = find_line(id);
  if (line == nullptr) return;
  {
    std::unique_lock lock(line->mutex);
    line->queue = nullptr;
    line->idle.wait(lock, [&] { return line->users == 0; });
  }
  Lines& table = lines();
  const std::lock_guard lock(table.mutex);
  table.free.push_back(id);
}

}  // namespace berth
