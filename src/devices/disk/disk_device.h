// A file as a read-only device: a block is the start of the file, mapped and not read; a view of it is any region. Host
// pointers refer to the page cache; copies use pread, so that a truncated file or a failing disk is an error and not a
// signal. Any thread may call.
#pragma once

#include <string>

#include "berth/memory/device.h"

namespace berth::internal::disk {

// kIo if the path cannot be opened or is not a regular file.
Result<DevicePtr> open(std::string path);

// True if the path still refers to the file that was opened. Requires: `device` is from open().
bool is_current(const Device& device);

}  // namespace berth::internal::disk
