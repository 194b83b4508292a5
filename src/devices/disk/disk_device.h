// A file as a read-only device: a block is the file's first bytes, mapped and not read; a view of it is any
// region at any offset. Host pointers go straight to the page cache; copies go through pread, so that a file
// that shrank or a failing disk is an error and not a signal.
#pragma once

#include <string>

#include "berth/memory/device.h"

namespace berth::disk {

// kIo if the path cannot be opened or is not a regular file.
Result<DevicePtr> open(std::string path);

// Whether the path still leads to the file that was opened. Requires: `device` is from open().
bool is_current(const Device& device);

}  // namespace berth::disk
