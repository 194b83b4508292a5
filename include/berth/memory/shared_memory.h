// Memory that another process on this machine can map. A SharedMemory is what the other process needs: a descriptor,
// which only the system can pass on (SCM_RIGHTS of a socket, or inheritance by a child), and two numbers, which can be
// sent anywhere. Buffer::share makes one and Buffer::import_shared uses one. Plain values with one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace berth {

enum class SharedAccess : std::uint8_t {
  kRead,       // the descriptor cannot be mapped for writing, where the system can enforce that
  kReadWrite,  // both processes may write; Berth orders nothing between them
};

// Owns a file descriptor and closes it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor taken(std::move(other));
    std::swap(number_, taken.number_);
    return *this;
  }
  ~Descriptor();

  // The number; -1 if there is none.
  int get() const noexcept { return number_; }
  // Gives up the ownership: the caller closes it.
  int release() noexcept { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

struct SharedMemory {
  Descriptor descriptor{};
  std::size_t memory_bytes = 0;  // of all memory behind the descriptor; 0 on import: as the system says (CPU only)
  std::size_t offset = 0;        // of the first byte of the buffer
};

}  // namespace berth
