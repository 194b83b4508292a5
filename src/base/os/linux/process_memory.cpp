#include "base/os/process_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>

namespace berth::internal {
namespace {

class LinuxProcessMemory final : public ProcessMemory {
 public:
  LinuxProcessMemory(pid_t process, int handle) : process_(process), handle_(handle) {}
  ~LinuxProcessMemory() override { close(handle_); }
  LinuxProcessMemory(const LinuxProcessMemory&) = delete;
  LinuxProcessMemory& operator=(const LinuxProcessMemory&) = delete;

  // The handle belongs to the process, not to its number, and is readable when it has ended.
  bool is_alive() noexcept override {
    pollfd ended{.fd = handle_, .events = POLLIN, .revents = 0};
    return poll(&ended, 1, 0) == 0;
  }

  bool read(std::uint64_t address, std::span<std::byte> target) noexcept override {
    return copy(process_vm_readv, address, target.data(), target.size());
  }

  bool write(std::uint64_t address, std::span<const std::byte> source) noexcept override {
    return copy(process_vm_writev, address, const_cast<std::byte*>(source.data()), source.size());
  }

  int open_file(int descriptor) noexcept override {
    char path[48];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(process_), descriptor);
    return ::open(path, O_RDWR | O_CLOEXEC);
  }

 private:
  template <class Call>
  bool copy(Call call, std::uint64_t address, std::byte* local, std::size_t bytes) noexcept {
    while (bytes > 0) {
      const iovec here{local, bytes}, there{reinterpret_cast<void*>(address), bytes};
      const ssize_t copied = call(process_, &here, 1, &there, 1, 0);
      if (copied <= 0) return false;
      address += static_cast<std::uint64_t>(copied);
      local += copied;
      bytes -= static_cast<std::size_t>(copied);
    }
    return true;
  }

  const pid_t process_;
  const int handle_;
};

}  // namespace

std::unique_ptr<ProcessMemory> ProcessMemory::open(pid_t process) {
  const long handle = syscall(SYS_pidfd_open, process, 0);
  return handle < 0 ? nullptr : std::make_unique<LinuxProcessMemory>(process, static_cast<int>(handle));
}

}  // namespace berth::internal
