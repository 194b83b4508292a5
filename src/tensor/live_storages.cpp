#include "tensor/live_storages.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>

#include "base/across_fork.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "memory/leak_tracking.h"
#include "tensor/storage.h"

namespace berth {
namespace internal {
namespace {

using Clock = std::chrono::steady_clock;

struct Live final : AcrossFork {
  const Clock::time_point began = Clock::now();
  Mutex mutex;
  Storage* first BERTH_GUARDED_BY(mutex) = nullptr;
  std::uint64_t serial BERTH_GUARDED_BY(mutex) = 0;

  void before_fork() noexcept override BERTH_NO_THREAD_ANALYSIS { mutex.lock(); }
  void after_fork(bool) noexcept override BERTH_NO_THREAD_ANALYSIS { mutex.unlock(); }

  Live() {
    join_forks(*this, Turn::kLeaf);
    std::atexit([] {
      if (!tracks_leaks()) return;
      if (const std::string report = live_buffers().to_string(); !report.empty())
        std::fprintf(stderr, "berth: buffers alive at exit:\n%s", report.c_str());
    });
  }
};

// Never destroyed: static buffers may be destroyed later.
Live& live() {
  static Live* const instance = new Live;
  return *instance;
}

}  // namespace

void note_live(Storage& storage) {
  if (!tracks_leaks()) [[likely]]
    return;
  Live& list = live();
  LiveLink& link = storage.live;
  link.made_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - list.began).count();
  const MutexLock lock(list.mutex);
  link.serial = ++list.serial;
  link.next = list.first;
  if (list.first != nullptr) list.first->live.previous = &storage;
  list.first = &storage;
}

void note_gone(Storage& storage) noexcept {
  const LiveLink& link = storage.live;
  if (link.serial == 0) [[likely]]
    return;
  Live& list = live();
  const MutexLock lock(list.mutex);
  if (link.previous != nullptr)
    link.previous->live.next = link.next;
  else
    list.first = link.next;
  if (link.next != nullptr) link.next->live.previous = link.previous;
}

std::uint64_t newest_live_serial() noexcept {
  Live& list = live();
  const MutexLock lock(list.mutex);
  return list.serial;
}

LiveReport live_buffers_since(std::uint64_t serial, const Device* device) {
  using Key = std::tuple<const Device*, std::uint16_t, std::uint16_t, std::string_view, std::uint32_t>;
  std::map<Key, LiveBuffers> groups;
  Live& list = live();
  {
    const MutexLock lock(list.mutex);
    // The newest storages come first.
    for (Storage* each = list.first; each != nullptr && each->live.serial > serial; each = each->live.next) {
      if (!each->is_ready()) continue;
      const Device& on = each->allocator()->device();
      if (device != nullptr && &on != device) continue;
      const std::source_location& site = each->site();
      LiveBuffers& group = groups[{&on, each->label().id(), each->tag().id(), site.file_name(), site.line()}];
      if (group.count++ == 0) {
        group.device = on.name();
        group.label = each->label().text();
        group.tag = each->tag().text();
        group.file = site.file_name();
        group.line = site.line();
      }
      group.bytes += each->bytes();
      group.made_after_seconds = static_cast<double>(each->live.made_ns) / 1e9;
    }
  }
  LiveReport report;
  for (auto& [key, group] : groups) {
    report.bytes += group.bytes;
    report.count += group.count;
    report.buffers.push_back(std::move(group));
  }
  std::stable_sort(report.buffers.begin(), report.buffers.end(),
                   [](const LiveBuffers& a, const LiveBuffers& b) { return a.bytes > b.bytes; });
  return report;
}

}  // namespace internal

std::string LiveReport::to_string() const {
  std::string text;
  for (const LiveBuffers& each : buffers) {
    text += fmt::format("  {} in {} buffer{} on {}", format_bytes(each.bytes), each.count, each.count == 1 ? "" : "s",
                        each.device);
    if (!each.label.empty()) text += fmt::format(", label \"{}\"", each.label);
    if (!each.tag.empty()) text += fmt::format(", tag \"{}\"", each.tag);
    text += fmt::format(", made at {}:{} after {:.3f} s\n", each.file, each.line, each.made_after_seconds);
  }
  return text;
}

void track_buffers(bool on) noexcept {
  internal::leak_tracking().store(on, std::memory_order_relaxed);
}

bool tracks_buffers() noexcept {
  return internal::tracks_leaks();
}

LiveReport live_buffers(const Device* device) {
  return internal::live_buffers_since(0, device);
}

}  // namespace berth
