// The list of live storages behind the leak report. A storage is in the list if leaks were tracked when it was made.
#pragma once

#include <cstdint>

#include "berth/tensor/leaks.h"

namespace berth::internal {

class Storage;

// Where a storage is in the list.
struct LiveLink {
  Storage* previous = nullptr;
  Storage* next = nullptr;
  std::uint64_t serial = 0;  // 0: not in the list
  std::int64_t made_ns = 0;  // since tracking began
};

// The first call allocates the list. Throws std::bad_alloc.
void note_live(Storage& storage);
void note_gone(Storage& storage) noexcept;

// The serial of the newest tracked storage. Serials count up from 1.
std::uint64_t newest_live_serial() noexcept;
// As live_buffers(), for the storages made after the one with this serial.
LiveReport live_buffers_since(std::uint64_t serial, const Device* device);

}  // namespace berth::internal
