#include "remote/near_lease.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <span>

#include "base/os/process_memory.h"
#include "base/os/shared_file.h"

namespace berth::internal::remote {
namespace {

constexpr std::size_t kTail = 4096;  // has the proof

// Where the proof begins.
constexpr std::size_t end_of(std::size_t bytes) {
  return (bytes + kTail - 1) / kTail * kTail;
}

}  // namespace

std::unique_ptr<NearLease> NearLease::make(std::size_t bytes, std::uint64_t generation) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 4) return nullptr;
  const int file = make_shared_file(end_of(bytes) + kTail);
  if (file < 0) return nullptr;
  std::unique_ptr<NearLease> lease(new NearLease(file, bytes));
  if (!lease->map()) return nullptr;
  lease->proof() = generation;
  return lease;
}

std::unique_ptr<NearLease> NearLease::open(const Place& place) {
  if (place.descriptor < 0 || place.bytes > std::numeric_limits<std::size_t>::max() / 4) return nullptr;
  const auto owner = ProcessMemory::open(place.process);
  if (owner == nullptr) return nullptr;
  // Whoever has the random generation at this address is the owner: only now the number of a file means something.
  std::uint64_t found = 0;
  if (!owner->read(place.address + end_of(place.bytes), std::as_writable_bytes(std::span(&found, 1))) ||
      found != place.generation)
    return nullptr;
  const int file = owner->open_file(place.descriptor);
  if (file < 0) return nullptr;
  std::unique_ptr<NearLease> lease(new NearLease(file, place.bytes));
  struct stat about {};
  if (fstat(file, &about) != 0 || about.st_size != static_cast<off_t>(end_of(place.bytes) + kTail) ||
      !cannot_shrink(file) || !lease->map() || lease->proof() != place.generation)
    return nullptr;
  return lease;
}

bool NearLease::map() noexcept {
  void* const mapped =
      mmap(nullptr, end_of(bytes_) + kTail, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (mapped != MAP_FAILED) address_ = static_cast<std::byte*>(mapped);
  return address_ != nullptr;
}

std::uint64_t& NearLease::proof() const noexcept {
  return *reinterpret_cast<std::uint64_t*>(address_ + end_of(bytes_));
}

NearLease::~NearLease() {
  if (address_ != nullptr) munmap(address_, end_of(bytes_) + kTail);
  close(descriptor_);
}

}  // namespace berth::internal::remote
