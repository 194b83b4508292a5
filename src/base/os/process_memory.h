// The memory of another process of this machine, copied by the kernel without the help of that process. Any thread may
// call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace berth::internal {

class ProcessMemory {
 public:
  // Null if there is no such process, or if the system has no way to tell that it has ended.
  static std::unique_ptr<ProcessMemory> open(pid_t process);
  virtual ~ProcessMemory() = default;

  // False as soon as the process that was opened has ended, even if its number is in use again.
  virtual bool is_alive() noexcept = 0;

  // Copy any number of bytes, by the number of the process: is_alive() before tells whether that is still the same one.
  // False if not all bytes were copied: there are none at that address, or the system does not let this process at the
  // memory of the other, as with another user, in a sandbox, or by a setting of the administrator.
  virtual bool read(std::uint64_t address, std::span<std::byte> target) noexcept = 0;
  virtual bool write(std::uint64_t address, std::span<const std::byte> source) noexcept = 0;

  // A second descriptor of a file that the process has open, for reading and writing, or -1. The caller closes it.
  virtual int open_file(int descriptor) noexcept = 0;
};

}  // namespace berth::internal
