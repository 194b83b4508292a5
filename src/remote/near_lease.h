// Memory that a rank lends to another process of this machine: a file in memory that both map. Its pages are taken when
// they are used, and stay valid for both, also when the other has ended. Any thread may use the memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace berth::internal::remote {

class NearLease {
 public:
  // The side of the owner. The generation lies behind the bytes: it proves to the other rank whose memory it is. Null
  // if the system has no such files.
  static std::unique_ptr<NearLease> make(std::size_t bytes, std::uint64_t generation);

  struct Place {
    pid_t process = 0;          // of the owner, as it calls itself
    int descriptor = -1;        // of the file there
    std::uint64_t address = 0;  // of the bytes there
    std::size_t bytes = 0;
    std::uint64_t generation = 0;
  };
  // The side of the borrower. Null if the system does not let this process at the files of the owner, or if the number
  // of the process means another one here, as it does in containers.
  static std::unique_ptr<NearLease> open(const Place& place);

  ~NearLease();
  NearLease(const NearLease&) = delete;
  NearLease& operator=(const NearLease&) = delete;

  std::byte* address() const noexcept { return address_; }
  int descriptor() const noexcept { return descriptor_; }

 private:
  NearLease(int descriptor, std::size_t bytes) : descriptor_(descriptor), bytes_(bytes) {}
  bool map() noexcept;
  std::uint64_t& proof() const noexcept;

  const int descriptor_;
  const std::size_t bytes_;
  std::byte* address_ = nullptr;
};

}  // namespace berth::internal::remote
