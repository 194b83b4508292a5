// A point on a queue's timeline. Every queue owns one timeline; each submit() advances it by one. A Timepoint is
// reached when the queue has finished all work submitted up to it. Both types are plain values.
#pragma once

#include <cstdint>

namespace berth {

// Identifies the timeline of one queue. At most 65,535 queues exist at a time.
enum class TimelineId : std::uint16_t { kNone = 0 };

// Eight bytes, so that one atomic store can stamp a storage with its last use. The default timepoint is always reached,
// and every timepoint of a destroyed queue is reached: a timepoint never dangles.
struct Timepoint {
  std::uint64_t bits = 0;

  static constexpr Timepoint at(TimelineId timeline, std::uint64_t value) noexcept {
    return {static_cast<std::uint64_t>(timeline) << 48 | value};
  }
  constexpr TimelineId timeline() const noexcept { return static_cast<TimelineId>(bits >> 48); }
  constexpr std::uint64_t value() const noexcept { return bits & 0xffff'ffff'ffff; }
  friend constexpr bool operator==(Timepoint, Timepoint) = default;
};

}  // namespace berth
