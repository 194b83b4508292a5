// The live queues of one driver by their timelines, so that one queue can wait for another on the device itself. A
// driver has one map, which is never destroyed. Any thread may call.
#pragma once

#include <unordered_map>
#include <utility>

#include "berth/base/mutex.h"
#include "berth/memory/timepoint.h"

namespace berth::internal {

template <class Entry>
class TimelineMap {
 public:
  void put(TimelineId timeline, Entry entry) {
    const MutexLock lock(mutex_);
    entries_.insert_or_assign(timeline, std::move(entry));
  }

  // Removes the entry, unless another queue has taken the timeline since.
  void remove(TimelineId timeline, const Entry& entry) noexcept {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(timeline);
    if (found != entries_.end() && found->second == entry) entries_.erase(found);
  }

  // Calls `use(entry)`, during which the entry stays. False if there is none.
  template <class Use>
  bool with(TimelineId timeline, const Use& use) {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(timeline);
    if (found == entries_.end()) return false;
    use(found->second);
    return true;
  }

  // Calls `use(entry)` for each entry. None is removed meanwhile.
  template <class Use>
  void for_each(const Use& use) {
    const MutexLock lock(mutex_);
    for (const auto& [timeline, entry] : entries_) use(entry);
  }

 private:
  Mutex mutex_;
  std::unordered_map<TimelineId, Entry> entries_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal
