#include "tensor/live_storages.h"

#ifndef NDEBUG

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "berth/base/mutex.h"
#include "tensor/storage.h"

namespace berth::internal {
namespace {

struct Live {
  Mutex mutex;
  Storage* first BERTH_GUARDED_BY(mutex) = nullptr;

  Live() {
    std::atexit([] {
      if (const std::string report = live_report(); !report.empty())
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

void note_live(Storage& storage) noexcept {
  Live& list = live();
  const MutexLock lock(list.mutex);
  storage.next_live = list.first;
  if (list.first != nullptr) list.first->previous_live = &storage;
  list.first = &storage;
}

void note_gone(Storage& storage) noexcept {
  Live& list = live();
  const MutexLock lock(list.mutex);
  if (storage.previous_live != nullptr)
    storage.previous_live->next_live = storage.next_live;
  else
    list.first = storage.next_live;
  if (storage.next_live != nullptr) storage.next_live->previous_live = storage.previous_live;
}

std::string live_report() {
  Live& list = live();
  const MutexLock lock(list.mutex);
  std::string text;
  for (const Storage* storage = list.first; storage != nullptr; storage = storage->next_live)
    text += fmt::format("  {} \"{}\" made at {}:{}\n", format_bytes(storage->bytes()), storage->label().text(),
                        storage->site().file_name(), storage->site().line());
  return text;
}

}  // namespace berth::internal

#endif
