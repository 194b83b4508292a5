// What is alive: the live buffers by device, label, tag and the place in the source that made them, largest first.
// Buffers are tracked in debug builds, with the environment variable BERTH_LEAKS=1, and while track_buffers(true)
// holds. A program that tracks prints what is alive when it exits, and when a device is destroyed that has live blocks.
// Tracking costs a lock and a clock reading for each new storage; views cost nothing. Any thread may call.
//
//   berth::track_buffers(true);
//   ...
//   std::puts(berth::live_buffers().to_string().c_str());
//
// berth/testing.h has a check for tests that fails on any leak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace berth {

class Device;

// The live buffers with one device, label, tag and place.
struct LiveBuffers {
  std::string device{};
  std::string label{};
  std::string tag{};
  std::string file{};  // of the call that made them
  std::uint32_t line = 0;
  std::size_t bytes = 0;  // of their storages
  std::size_t count = 0;
  double made_after_seconds = 0;  // when the oldest of them was made, since tracking began
};

struct LiveReport {
  std::vector<LiveBuffers> buffers{};  // largest first
  std::size_t bytes = 0;
  std::size_t count = 0;

  // One line for each entry; empty if there is none.
  std::string to_string() const;
};

// From now on, new storages are tracked, or not. Storages that were made while nothing was tracked are never reported.
void track_buffers(bool on) noexcept;
bool tracks_buffers() noexcept;

// The tracked storages that are alive: those on `device`, or all if it is null. Lazy buffers without memory are not
// alive. O(n log n) for n live storages.
LiveReport live_buffers(const Device* device = nullptr);

}  // namespace berth
