#include <algorithm>
#include <chrono>
#include <optional>

#include "berth/alloc/recording.h"
#include "berth/memory/device.h"

namespace berth {

RecordingReport run_recording(const Recording& recording, Allocator& allocator) {
  RecordingReport report;
  std::vector<Name> labels;
  labels.reserve(recording.labels.size());
  for (const std::string& label : recording.labels) labels.push_back(label.empty() ? Name() : Name(label));
  struct Held {
    Block block;
    std::size_t asked;
  };
  std::vector<std::optional<Held>> held(recording.blocks);
  const Device& device = allocator.device();
  const std::size_t before = device.counters().live_bytes;
  std::size_t live = 0;
  using Clock = std::chrono::steady_clock;
  Clock::duration spent{};
  for (const RecordedEvent& event : recording.events) {
    std::optional<Held>& slot = held[event.block];
    const auto start = Clock::now();
    if (event.is_free) {
      if (!slot) continue;  // it was refused
      allocator.release(slot->block);
      spent += Clock::now() - start;
      live -= slot->asked;
      slot.reset();
      continue;
    }
    auto block = allocator.allocate({.bytes = event.bytes, .alignment = event.alignment, .label = labels[event.label]});
    spent += Clock::now() - start;
    if (!block) {
      ++report.failures;
      continue;
    }
    slot = Held{*block, event.bytes};
    live += event.bytes;
    report.peak_live_bytes = std::max(report.peak_live_bytes, live);
    const std::size_t now = device.counters().live_bytes;
    report.peak_held_bytes = std::max(report.peak_held_bytes, now > before ? now - before : 0);
  }
  for (const std::optional<Held>& slot : held)
    if (slot) allocator.release(slot->block);
  report.seconds = std::chrono::duration<double>(spent).count();
  if (report.peak_held_bytes > 0)
    report.fragmentation = 1.0 - static_cast<double>(std::min(report.peak_live_bytes, report.peak_held_bytes)) /
                                     static_cast<double>(report.peak_held_bytes);
  return report;
}

}  // namespace berth
