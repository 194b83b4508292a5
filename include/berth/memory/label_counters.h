// Live bytes and counts by label, for the layers that explain an out-of-memory error. Adding and removing take two
// relaxed atomic operations. Memory grows in chunks with the number of labels in use, up to 1 MiB. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "berth/memory/out_of_memory.h"

namespace berth {

class LabelCounters {
 public:
  LabelCounters() = default;
  ~LabelCounters();
  LabelCounters(const LabelCounters&) = delete;
  LabelCounters& operator=(const LabelCounters&) = delete;

  void add(Name label, std::size_t bytes) noexcept;
  void remove(Name label, std::size_t bytes) noexcept;

  // Live bytes and counts by label, largest first. Labels that differ only in their last number are merged: "kv-cache
  // 0..11".
  std::vector<OutOfMemory::Holder> holders() const;

 private:
  static constexpr std::size_t kChunk = 256;
  struct Counter {
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::size_t> count{0};
  };
  using Chunk = std::array<Counter, kChunk>;

  Counter* find(std::uint16_t label) noexcept;

  std::array<std::atomic<Chunk*>, 65536 / kChunk> chunks_{};
};

}  // namespace berth
